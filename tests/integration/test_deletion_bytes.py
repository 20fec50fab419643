"""Deletion down to the bytes that Redis keeps in its own files."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from pipeline.contracts import Question
from tests.deleted import MARKER, holding, ingest_marked
from tests.servers import Lacking, lacking
from tests.servers.redis import RedisServer
from tests.system import settings_for, until
from workers import processes, server
from workers.dispatch import Platform, open_platform


@pytest.fixture
def with_own_redis(tmp_path: Path) -> Iterator[Platform]:
    """The server that `up` starts, with its append-only file, and the answer cache in it."""
    settings = settings_for(tmp_path / "home", cache_ttl=3600)
    child, url = server.start(settings, None)
    try:
        with open_platform(replace(settings, redis_url=url)) as platform:
            yield platform
    finally:
        processes.stop([child], grace_s=5.0)


def test_a_cached_answer_of_a_deleted_document_leaves_the_files_of_the_own_redis(with_own_redis: Platform) -> None:
    platform = with_own_redis
    document = ingest_marked(platform)
    for _ in range(2):
        answer = platform.ask(Question(f"How often does the {MARKER} read the gauge?", ("handbook",)))
        assert not answer.refused and MARKER in answer.text
    files = Path(platform.settings.home) / "run" / "redis"
    assert holding(files, MARKER)
    assert platform.deleting.documents("handbook", [document]).outstanding == ()
    assert holding(files, MARKER) == []
    assert holding(Path(platform.settings.home), MARKER) == []


@pytest.fixture
def durable(tmp_path: Path) -> Iterator[RedisServer]:
    """A server of somebody else's, which keeps snapshots and a log."""
    try:
        given = RedisServer(keeps=True)
    except Lacking as reason:
        lacking("Redis", str(reason))
    try:
        given.start()
        yield given
    finally:
        given.close()


def test_a_server_of_somebody_elses_holds_nothing_after_its_own_snapshot_and_rewrite(durable: RedisServer, tmp_path: Path) -> None:
    with open_platform(settings_for(tmp_path / "home", cache_ttl=3600, redis_url=durable.url)) as platform:
        document = ingest_marked(platform)
        assert MARKER in platform.ask(Question(f"How often does the {MARKER} read the gauge?", ("handbook",))).text
        with durable.client() as client:
            client.save()
            assert holding(durable.folder, MARKER)
            assert platform.deleting.documents("handbook", [document]).outstanding == ()
            client.save()
            client.bgrewriteaof()
            until(lambda: rewritten(client), 30.0, "the log is written anew")
        until(lambda: holding(durable.folder, MARKER) == [], 30.0, "the files before are gone")


def rewritten(client: Any) -> bool:
    state = client.info("persistence")
    return not state["aof_rewrite_in_progress"] and not state["aof_rewrite_scheduled"]
