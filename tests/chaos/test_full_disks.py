"""A disk that fills up under artifacts, ledger, store or Redis: work waits, says why, and goes on when there is room."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
import redis

from pipeline.errors import Unavailable
from tests.chaos.proof import Begin
from tests.servers import Lacking, lacking
from tests.simulators.model_server import ModelServer
from tests.system import System, until

ROOM_MB = 64


@pytest.fixture
def disk(tmp_path: Path) -> Iterator[Path]:
    """A small disk of its own. Only root may have one."""
    place = tmp_path / "disk"
    place.mkdir()
    try:
        mount(place)
    except Lacking as reason:
        lacking("a disk of its own", str(reason))
    try:
        yield place
    finally:
        subprocess.run(["umount", "-l", str(place)], check=False)


def mount(place: Path) -> None:
    done = subprocess.run(["mount", "-t", "tmpfs", "-o", f"size={ROOM_MB}m", "tmpfs", str(place)], capture_output=True, text=True, check=False)
    if done.returncode:
        raise Lacking(f"mount says: {done.stderr.strip()}")


class Ballast:
    """A file that takes all the room there is, until it is thrown off."""

    def __init__(self, disk: Path) -> None:
        self._path = disk / "ballast"

    def load(self) -> None:
        blocks = os.statvfs(self._path.parent).f_blocks
        with self._path.open("wb", buffering=0) as file:
            # Small pieces at the end, so that not a page is left.
            for size in (1 << 20, 1 << 12):
                with suppress(OSError):
                    for _ in range(blocks):
                        file.write(b"\0" * size)

    def throw_off(self) -> None:
        self._path.unlink()


def started(tmp_path: Path, model: ModelServer, **given: Any) -> System:
    return System(tmp_path / "home", embedder="openai:stub", embedder_base_url=model.url, **given)


def test_artifacts_on_a_full_disk_make_documents_wait_at_no_cost(tmp_path: Path, disk: Path, model: ModelServer, begin: Begin) -> None:
    ballast = Ballast(disk)
    with started(tmp_path, model, artifacts_url=f"file://{disk}/artifacts") as system:
        ballast.load()
        trial = begin(system, "artifacts")
        rows = until(lambda: waiting(system, "artifacts"), 20.0, "documents wait")
        assert {(row[0], row[1]) for row in rows} == {("artifacts_unavailable", 0)} and "No space left" in rows[0][2]
        assert not list(disk.glob("artifacts/*/*")), "half an artifact was left"
        ballast.throw_off()
        trial.prove(seconds=120.0)


def waiting(system: System, tenant: str) -> list[tuple[str, int, str]]:
    """Code, attempts and detail of documents that wait for another try."""
    return system.rows("SELECT error_code, attempts, error_detail FROM documents WHERE tenant = ? AND status = 'retry'", tenant)


@pytest.mark.full
def test_a_store_on_a_full_disk_makes_documents_wait_at_no_cost(tmp_path: Path, disk: Path, model: ModelServer, begin: Begin) -> None:
    ballast = Ballast(disk)
    with started(tmp_path, model, store_url=f"sqlite:///{disk}/store") as system:
        ballast.load()
        trial = begin(system, "store")
        rows = until(lambda: waiting(system, "store"), 20.0, "documents wait")
        assert {row[1] for row in rows} == {0} and {row[0] for row in rows} <= {"disk_full", "store_away"}
        ballast.throw_off()
        trial.prove(seconds=120.0)


def test_a_ledger_on_a_full_disk_refuses_work_and_loses_none(tmp_path: Path, disk: Path, model: ModelServer, begin: Begin) -> None:
    ballast = Ballast(disk)
    with started(tmp_path, model, ledger_url=f"sqlite:///{disk}/ledger.db", lease_s=3) as system:
        trial = begin(system, "ledger")
        trial.reached(1)
        ballast.load()
        fitted = 0
        with pytest.raises(Unavailable, match="disk is full") as refused:
            for number in range(50):
                begin(system, f"refused-{number}")
                fitted += 1
        assert "space" in refused.value.hint
        ballast.throw_off()
        # Runs that still fitted are paid for, too, and the one that was refused perhaps in part.
        trial.prove(seconds=120.0, waste=trial.reference.inputs * (fitted + 2))


@pytest.mark.full
def test_a_redis_that_cannot_write_its_log_refuses_messages_until_there_is_room(tmp_path: Path, disk: Path, model: ModelServer, begin: Begin) -> None:
    """Its folder is on the small disk."""
    run = tmp_path / "home" / "run"
    run.mkdir(parents=True)
    (run / "redis").symlink_to(disk)
    ballast = Ballast(disk)
    with started(tmp_path, model) as system:
        ballast.load()
        with system.redis() as client:
            until(lambda: refuses(client), 20.0, "Redis takes no more")
        trial = begin(system, "aof")
        unsent = "SELECT 1 FROM batches WHERE tenant = 'aof' AND status = 'queued' AND published_at IS NULL"
        until(lambda: system.rows(unsent), 20.0, "a message was refused")
        ballast.throw_off()
        trial.prove(seconds=120.0)


def refuses(client: redis.Redis) -> bool:
    try:
        client.set("dujiang.full", "x" * 10_000, ex=60)
    except redis.ResponseError as error:
        return "MISCONF" in str(error)
    return False
