"""Hosts whose clocks are wrong: leases go by the ledger's clock, and what a broker hands out too early is refused by its token."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from sqlalchemy import func, select

from tests.chaos.proof import Begin
from tests.parts import beat, worker
from tests.servers import Lacking, lacking
from tests.servers.redis import RedisServer
from tests.simulators.model_server import ModelServer
from tests.system import System, settings_for
from workers.ledger import nodes
from workers.ledger.schema import batches

DEADLINE_S = 120
"""The broker gives a message to somebody else after a quarter more: far sooner than the clock that is ahead believes."""


def library() -> Path:
    """What tells a process another time. Raises Lacking."""
    for found in sorted(Path("/usr/lib").glob("*/faketime/libfaketimeMT.so.1")):
        return found
    raise Lacking("there is no libfaketime; on Debian install libfaketime")


@pytest.fixture
def other_time() -> Path:
    try:
        return library()
    except Lacking as reason:
        lacking("libfaketime", str(reason))


@pytest.mark.parametrize("skew", [pytest.param("+10m", id="ahead"), pytest.param("-10m", id="behind", marks=pytest.mark.full)])
def test_a_worker_whose_clock_is_wrong_by_ten_minutes_works_like_the_others(
    tmp_path: Path, postgres_database: str, redis_server: RedisServer, begin: Begin, model: ModelServer, other_time: Path, skew: str
) -> None:
    """Two workers of everything, one of them in another time, on a ledger whose clock is its own."""
    given: dict[str, Any] = {
        "redis_url": redis_server.url,
        "ledger_url": postgres_database,
        "embedder": "openai:stub",
        "embedder_base_url": model.url,
        "stage_deadline_s": DEADLINE_S,
    }
    settings = settings_for(tmp_path / "home", **given)
    system = System(tmp_path / "home", **given)
    false = {"LD_PRELOAD": str(other_time), "FAKETIME": skew, "FAKETIME_DONT_FAKE_MONOTONIC": "1"}
    every = "load,parse,chunk,embed,index"
    with beat(settings).ready(), worker(settings, "right", every, concurrency=2).ready():
        with worker(settings, "wrong", every, concurrency=2, environment=false).ready():
            off = {node.name.partition("@")[0]: node.skew_s for node in nodes.living(system.platform.db)}
            assert abs(off["wrong"]) > 500 > 60 > abs(off["right"]), off
            trial = begin(system, "skewed")
            trial.prove()
    done = select(func.count()).select_from(batches).where(batches.c.status == "done")
    assert trial.scalar(done.where(batches.c.owner.startswith("wrong@"))) > 0, "the worker with the wrong clock did nothing"
    assert trial.scalar(select(func.count()).select_from(batches).where(batches.c.status == "lost")) == 0
    system.close()
