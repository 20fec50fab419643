"""The HTTP API over a real platform on a real socket, in a thread of the test."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import uvicorn

from api.app import create_app
from pipeline.settings import load
from workers.dispatch import Platform, open_platform
from workers.inline import run_inline
from workers.views import Incoming


@dataclass(frozen=True, slots=True)
class Served:
    """A server, and the platform behind it."""

    url: str
    platform: Platform

    def ingest(self, collection: str, texts: Mapping[str, str], **metadata: str | int) -> None:
        """Documents by key, through all stages."""
        items = [Incoming(key=key, data=text.encode()) for key, text in texts.items()]
        run = self.platform.ingest(collection, items, metadata=metadata)
        done = run_inline(self.platform.runtime, run.run_id)
        assert done.indexed == len(texts), done

    def key(self, name: str, *collections: str) -> str:
        """A new key that may read these collections; all without any."""
        made = self.platform.create_key(name, collections=collections, permissions=("read",)).key
        assert made
        return made


@contextmanager
def served(home: Path, **settings: object) -> Iterator[Served]:
    given = {"home": str(home), "embedder": "hashed", "cache_ttl": 0, **settings}
    chosen = load(given, environ={}, cwd=home).settings
    with open_platform(chosen) as platform:
        config = uvicorn.Config(create_app(platform, chosen), host="127.0.0.1", port=0, log_level="error", lifespan="off", ws="none")
        server = uvicorn.Server(config)
        thread = threading.Thread(target=server.run, daemon=True)
        thread.start()
        until = time.monotonic() + 30.0
        while not server.started:
            assert thread.is_alive() and time.monotonic() < until, "the server starts"
            time.sleep(0.005)
        try:
            yield Served(f"http://127.0.0.1:{server.servers[0].sockets[0].getsockname()[1]}", platform)
        finally:
            server.should_exit = True
            thread.join(10.0)
