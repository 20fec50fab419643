"""A simulated Feishu as a source of a running system, or of one bench, under credentials that no other test shares."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, Protocol

from pipeline.contracts import Mode, Question
from tests.simulators.feishu import APP_ID, Feishu
from tests.simulators.served import Clock
from workers.dispatch import Platform
from workers.source_views import SourceView
from workers.views import RunView

QUICK = "2000"
"""Percent of the vendor's limits: tests that are not about limits need not keep them."""


class Syncs(Protocol):
    """Where the source is: a running system, or a bench."""

    @property
    def platform(self) -> Platform: ...


class Tenant:
    """One source over one simulator; its collection has its name."""

    def __init__(self, feishu: Feishu, home: Syncs, name: str, **options: str) -> None:
        self.feishu, self.library, self.home, self.name = feishu, feishu.library, home, name
        given = {"base_url": feishu.url, "app_id": APP_ID, "app_secret": feishu.tokens.app_secret, "rate_percent": QUICK, **options}
        if not {"folder_token", "wiki_space", "links"} & set(given):
            given["folder_token"] = self.library.root.token
        self.platform.sources.create(name, "feishu", name, options={key: value for key, value in given.items() if value})

    @property
    def platform(self) -> Platform:
        return self.home.platform

    def begin(self, *, full: bool = False) -> RunView:
        return self.platform.sources.sync(self.name, full=full)

    def sync(self, *, full: bool = False) -> RunView:
        """A whole run."""
        home: Any = self.home
        if hasattr(home, "finish"):
            return home.finish(self.begin(full=full))
        return home.sync(self.name, full=full)

    def show(self) -> SourceView:
        return self.platform.sources.show(self.name)

    def audit(self) -> int:
        """Documents of the store, which must agree with the ledger."""
        found: Any = self.home.audit(self.name)  # type: ignore[attr-defined]
        return found if isinstance(found, int) else found.documents

    def finds(self, text: str) -> list[str]:
        """Titles that a search shows, best first."""
        hits = self.platform.search(Question(text, collections=(self.name,), k=50, mode=Mode.PARTICIPLE)).hits
        return list(dict.fromkeys(hit.title for hit in hits))

    def documents(self) -> dict[str, Any]:
        """Key at the source → view."""
        views = self.platform.documents(self.name, limit=1000).data
        return {view.document.removeprefix(f"{self.name}:"): view for view in views}

    def texts(self) -> dict[str, str]:
        """Title → text of what can be found."""
        return {view.title: self.platform.document_text(self.name, view.document_id) for view in self.documents().values() if view.status == "done"}

    def asked(self, pattern: str) -> int:
        return len(self.feishu.asked(pattern))


Source = Callable[..., Tenant]
"""With options, when the library is filled."""


@contextmanager
def tenant(home: Syncs, name: str, *, clock: Clock | None = None) -> Iterator[Feishu]:
    """A simulator with a secret of its own: what is limited or shared by secret is this test's alone."""
    with Feishu(clock) as feishu:
        feishu.tokens.app_secret = f"secret-of-{name}"
        yield feishu
