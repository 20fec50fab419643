"""Documents with a marker that are deleted, and the files in which it may still stand."""

from __future__ import annotations

from pathlib import Path
from typing import Any, cast

import httpx
import pytest

from pipeline.identity import index_name
from tests.system import settings_for
from workers.dispatch import Platform, open_platform
from workers.inline import run_inline
from workers.ledger import catalog
from workers.views import Incoming

MARKER = "xylophonequagga"
TEXT = f"# Gauges\n\nThe {MARKER} reads the gauge every month.\n"


def ingest_marked(platform: Platform, collection: str = "handbook") -> str:
    """A document with the marker beside others; gives its id."""
    others = [Incoming(key=f"{number}.md", data=f"# Page {number}\n\nStation {number} reports.\n".encode()) for number in range(20)]
    run = platform.ingest(collection, [Incoming(key="secret.md", title=MARKER, data=TEXT.encode()), *others])
    assert run_inline(platform.runtime, run.run_id).indexed == 21
    return next(view.document_id for view in platform.documents(collection).data if view.document == "secret.md")


def holding(folder: Path, *words: str) -> list[str]:
    """``file: word`` for the files in which one of the words stands. A merge or a rewrite may remove files meanwhile."""
    found: list[str] = []
    for path in folder.rglob("*"):
        try:
            data = path.read_bytes() if path.is_file() else b""
        except FileNotFoundError:
            continue
        found += [f"{path.relative_to(folder)}: {word}" for word in words if word.encode() in data]
    return found


class Begun:
    """A document deleted from Elasticsearch a while ago, since its files forget within a minute."""

    def __init__(self, url: str, home: Path) -> None:
        self.address = url.removeprefix("elasticsearch+")
        self.platform = open_platform(settings_for(home, store_url=url))
        document = ingest_marked(self.platform, "secrets")
        row = catalog.find(self.platform.db, "default", "secrets")
        self.name = index_name(row.tenant, row.name, row.generation)
        body = self._body(document)
        # A piece from its middle: the beginning is the same for all.
        self.words = (MARKER, body[len(body) // 2 : len(body) // 2 + 16])
        self.flush()
        self.before = self.holding()
        self.said = self.platform.deleting.documents("secrets", [document]).outstanding

    def _body(self, document: str) -> str:
        asked = {"query": {"term": {"document_id": document}}, "size": 50}
        httpx.post(f"{self.address}/{self.name}-documents/_refresh", timeout=60)
        hits = httpx.post(f"{self.address}/{self.name}-documents/_search", json=asked, timeout=60).json()["hits"]["hits"]
        return next(str(hit["_source"]["body"]) for hit in hits if "body" in hit["_source"])

    def flush(self) -> None:
        httpx.post(f"{self.address}/{self.name},{self.name}-documents/_flush", params={"force": "true"}, timeout=60)

    def holding(self) -> list[str]:
        nodes: dict[str, Any] = httpx.get(f"{self.address}/_nodes/settings", timeout=60).json()["nodes"]
        (node,) = nodes.values()
        found = cast("str | list[str]", node["settings"]["path"]["data"])
        folder = Path(found if isinstance(found, str) else found[0])
        if not folder.is_dir():
            pytest.skip("the node of Elasticsearch is on another machine")
        return holding(folder, *self.words)

    def close(self) -> None:
        self.platform.delete_collection("secrets")
        self.platform.close()
