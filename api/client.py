"""The Python client: ingest, search, ask, audit, on this machine or over HTTP, with the same shapes."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from types import TracebackType
from typing import TYPE_CHECKING, Any, Unpack

from api.asking import Asking, Options
from api.results import AnswerView, Found, decode
from api.system import Ingestion, System

if TYPE_CHECKING:
    from pipeline.settings import Settings
    from workers.dispatch import Platform
    from workers.tuning_views import CalibrationView
    from workers.views import AuditView, CollectionView, GenerationView, Page, RunView, StatusView

Paths = str | os.PathLike[str] | Iterable[str | os.PathLike[str]]


class Dujiang:
    """One Dujiang. Use it in a `with` block, or call `close`.

    Args:
        url: of a remote system; DUJIANG_URL when left out; this machine when that is empty too.
        api_key: for the remote system; DUJIANG_API_KEY when left out.
        home: data folder on this machine; DUJIANG_HOME when left out.
        settings: instead of reading environment and files.
        platform: an open façade, which stays the caller's to close.
    Every failure is a `pipeline.errors.PipelineError`, wherever it happened.
    """

    def __init__(
        self, url: str = "", api_key: str = "", *, home: str = "", settings: Settings | None = None, platform: Platform | None = None
    ) -> None:
        self._settings = settings or (platform.settings if platform else _settings(url, api_key, home))
        self._system = _open(self._settings, platform)

    def __enter__(self) -> Dujiang:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self.close()

    def close(self) -> None:
        """Close connections and files. Safe to call twice."""
        self._system.close()

    @property
    def system(self) -> System:
        """Everything the command line can do: collections, documents, runs, failures, keys."""
        return self._system

    def ingest(
        self,
        paths: Paths,
        collection: str,
        *,
        metadata: Mapping[str, str | int | float | bool | list[str] | None] | None = None,
        pages: str = "",
        lane: str = "",
        wait: bool = True,
        on_progress: Callable[[RunView], None] | None = None,
    ) -> RunView:
        """Take in files, folders, globs, zip archives and manifests.

        Returns: the run; finished, with its balance, unless `wait` is False. A document that failed is in `failures`,
        and raises nothing.
        """
        from api.incoming import listed

        names = [os.fspath(path) for path in ([paths] if isinstance(paths, (str, os.PathLike)) else paths)]
        items = listed(names, max_bytes=self._settings.max_file_mb * 1_000_000)
        options = {"pages": pages} if pages else {}
        return self._system.ingest(Ingestion(collection, items, lane, metadata or {}, options, "python", wait=wait, on_progress=on_progress))

    def ingest_texts(
        self, texts: Mapping[str, str], collection: str, *, metadata: Mapping[str, Any] | None = None, lane: str = "", wait: bool = True
    ) -> RunView:
        """Take in texts that are in memory already, by key; a key's suffix (``.md``) says the format."""
        from api.incoming import of_text

        items = [of_text(key, text) for key, text in texts.items()]
        return self._system.ingest(Ingestion(collection, items, lane, metadata or {}, {}, "python", wait=wait))

    def search(self, query: str, collection: str | Sequence[str] = (), **options: Unpack[Options]) -> Found:
        """Ranked chunks of one collection, several, or all."""
        return decode(Found, self._system.search(query, _asking(collection, options)))

    def ask(self, query: str, collection: str | Sequence[str] = (), **options: Unpack[Options]) -> AnswerView:
        """A cited answer; `refused` with a `reason` where the evidence does not carry one."""
        return decode(AnswerView, self._system.ask(query, _asking(collection, options)))

    def stream(self, query: str, collection: str | Sequence[str] = (), **options: Unpack[Options]) -> Iterator[str | AnswerView]:
        """Pieces of the answer as they are written, then the whole."""
        for piece in self._system.stream(query, _asking(collection, options)):
            yield piece if isinstance(piece, str) else decode(AnswerView, piece)

    def audit(self, collection: str | Sequence[str] = ()) -> AuditView:
        """What the stores really hold."""
        return self._system.audit(_names(collection))

    def collections(self, *, limit: int = 100, after: str = "") -> Page[CollectionView]:
        """The collections there are, by name."""
        return self._system.collections(limit=limit, after=after)

    def tune(self, collection: str, **changes: object) -> CollectionView:
        """Change how a collection is searched: top_k, score_threshold, merge, lexical_weight, widen; None takes a setting back."""
        return self._system.tune_collection(collection, changes)

    def calibrate(self, collection: str, questions: Iterable[tuple[str, bool]], *, cap: float = 0.05, dry_run: bool = False) -> CalibrationView:
        """Take the refusal threshold from pairs (question, whether the documents answer it).

        Of all thresholds that refuse at most `cap` of the answerable ones, the one that tells both kinds apart best. It holds for the
        generation that answers now.
        """
        from pipeline.calibrate import Labelled

        return self._system.calibrate(collection, [Labelled(*one) for one in questions], cap=cap, dry_run=dry_run)

    def reindex(
        self,
        collection: str,
        *,
        embedder: str = "",
        chunker: str = "",
        options: Mapping[str, str] | None = None,
        wait: bool = True,
        on_progress: Callable[[RunView], None] | None = None,
    ) -> RunView:
        """Build a collection anew from kept bytes; it answers as it is until the new generation is whole. What is left out stays as it is.

        Returns: the run; "failed" where documents failed, and the earlier generation then goes on answering.
        """
        run = self._system.reindex(collection, embedder=embedder, chunker=chunker, options=options)
        return self._system.wait(run, on_progress=on_progress, on_note=None) if wait else run

    def rollback(self, collection: str, *, wait: bool = True, on_progress: Callable[[RunView], None] | None = None) -> RunView:
        """Return to the generation that answered before; what was deleted since stays deleted."""
        run = self._system.rollback(collection)
        return self._system.wait(run, on_progress=on_progress, on_note=None) if wait else run

    def generations(self, collection: str) -> Sequence[GenerationView]:
        """Every build of a collection that the store holds, oldest first."""
        return self._system.generations(collection)

    def status(self) -> StatusView:
        """Processes, queues and counts."""
        return self._system.status()

    def run(self, run_id: str) -> RunView:
        """The present balance of a run."""
        return self._system.run(run_id)


def _settings(url: str, api_key: str, home: str) -> Settings:
    from pipeline.settings import load

    settings = load({"url": url or None, "api_key": api_key or None, "home": home or None}).settings
    # a data folder that was named is on this machine, whatever the environment says
    return replace(settings, url="") if home and not url else settings


def _open(settings: Settings, platform: Platform | None) -> System:
    if settings.url and platform is None:
        from api.remote import Remote

        return Remote(settings.url, api_key=settings.api_key, max_bytes=settings.max_file_mb * 1_000_000)
    from api.local import Local

    return Local(settings, platform)


def _names(collection: str | Sequence[str]) -> tuple[str, ...]:
    return (collection,) if isinstance(collection, str) else tuple(collection)


def _asking(collection: str | Sequence[str], options: Options) -> Asking:
    return Asking(collections=_names(collection), **options)
