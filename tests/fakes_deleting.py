"""Deletion on the platform in memory."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import UTC, datetime
from typing import Any

from workers.views import DeletedView, OutstandingView


class FakeDeleting:
    """`Platform.deleting`; what `left` names is said to be still to do."""

    def __init__(self, platform: Any) -> None:
        self._platform = platform
        self.left: tuple[str, ...] = ()

    def collection(self, name: str, *, tenant: str = "default") -> DeletedView:
        return DeletedView((name,), self._platform.delete_collection(name, tenant=tenant), outstanding=self.left)

    def documents(self, name: str, ids: Sequence[str], *, tenant: str = "default") -> DeletedView:
        chunks = sum(self._platform.document(name, one, tenant=tenant).chunks for one in ids)
        for one in ids:
            self._platform.delete_document(name, one, tenant=tenant)
        return DeletedView((), len(ids), chunks, outstanding=self.left)

    def outstanding(self) -> list[OutstandingView]:
        return [OutstandingView(what, 1, datetime.now(UTC)) for what in self.left]
