"""Redis holds only what may be lost: emptied, killed, frozen, full or away in mid-run, the run finishes and builds the same."""

from __future__ import annotations

import os
import signal
import time
from pathlib import Path

import pytest

from tests.chaos.proof import Begin
from tests.chaos.strikes import recovered
from tests.parts import beat, worker
from tests.servers.redis import RedisServer
from tests.simulators.model_server import ModelServer
from tests.system import System, settings_for, until

BULK = "dujiang.dujiang.parse.bulk"


def test_messages_that_redis_forgot_are_sent_again(system: System, begin: Begin) -> None:
    """The node is stopped while the queue fills, so that there is something to forget."""
    node = system.child("compute")
    os.kill(node, signal.SIGSTOP)
    try:
        trial = begin(system, "forgotten")
        with system.redis() as client:
            until(lambda: client.llen(BULK), 15.0, "messages wait in the queue")
            client.flushall()
    finally:
        os.kill(node, signal.SIGCONT)
    trial.prove()
    again = system.rows("SELECT count(*) FROM batches WHERE tenant = 'forgotten' AND token > 1")[0][0]
    assert again > 0, "nothing was lost"


def test_a_redis_that_was_emptied_is_noticed_although_new_messages_wait_in_it(system: System, begin: Begin) -> None:
    """A queue that is not empty says nothing about the messages that were in it before: the missing mark does."""
    node = system.child("compute")
    os.kill(node, signal.SIGSTOP)
    try:
        first = begin(system, "wiped")
        with system.redis() as client:
            until(lambda: client.llen(BULK) > 1, 15.0, "messages wait in the queue")
            until(lambda: client.exists("dujiang.epoch"), 15.0, "the mark is there")
            waiting = client.lrange(BULK, -1, -1)
            client.flushall()
            client.rpush(BULK, *waiting)
        again = "SELECT count(*) FROM batches WHERE tenant = 'wiped' AND token > 1"
        until(lambda: system.rows(again)[0][0] > 1, 10.0, "what is missing was sent again")
    finally:
        os.kill(node, signal.SIGCONT)
    first.prove()


@pytest.mark.full
def test_redis_emptied_again_and_again_in_mid_run_costs_nothing(system: System, begin: Begin) -> None:
    trial = begin(system, "flushed")
    for number in (1, 80, 160):
        trial.reached(number)
        with system.redis() as client:
            client.flushall()
    trial.prove()


def test_redis_killed_in_mid_run_is_started_again_and_the_run_finishes(system: System, begin: Begin) -> None:
    """It is our own server, which writes what it holds to disk."""
    trial = begin(system, "killed")
    trial.reached(1)
    before = system.child("redis")
    os.kill(before, signal.SIGKILL)
    trial.prove()
    recovered(system)
    assert system.child("redis") != before


@pytest.mark.parametrize("seconds", [pytest.param(4.0, id="4 s"), pytest.param(40.0, id="40 s", marks=pytest.mark.full)])
def test_a_redis_that_freezes_in_mid_run_is_waited_for(system: System, begin: Begin, seconds: float) -> None:
    trial = begin(system, f"frozen-{seconds:.0f}")
    trial.reached(1)
    server = system.child("redis")
    os.kill(server, signal.SIGSTOP)
    try:
        end = time.monotonic() + seconds
        until(lambda: time.monotonic() > end, seconds + 5, "time passes")
    finally:
        os.kill(server, signal.SIGCONT)
    trial.prove()


def test_a_redis_that_is_full_refuses_messages_until_there_is_room(system: System, begin: Begin) -> None:
    with system.redis() as client:
        client.config_set("maxmemory", 1)
        try:
            trial = begin(system, "full")
            refused = "SELECT 1 FROM batches WHERE tenant = 'full' AND status = 'queued' AND published_at IS NULL"
            until(lambda: system.rows(refused), 20.0, "a message was refused")
        finally:
            client.config_set("maxmemory", 0)
    trial.prove()


@pytest.mark.full
def test_a_redis_without_a_disk_killed_in_mid_run_comes_back_empty_and_costs_nothing(
    tmp_path: Path, redis_server: RedisServer, begin: Begin, model: ModelServer
) -> None:
    with System(tmp_path / "home", redis_url=redis_server.url, embedder="openai:stub", embedder_base_url=model.url) as system:
        trial = begin(system, "no-disk")
        trial.reached(1)
        redis_server.restart()
        trial.prove()
        recovered(system)


@pytest.mark.full
@pytest.mark.parametrize("seconds", [pytest.param(3.0, id="3 s"), pytest.param(180.0, id="3 min", marks=pytest.mark.full)])
def test_workers_that_are_started_before_redis_wait_for_it(
    tmp_path: Path, redis_server: RedisServer, begin: Begin, model: ModelServer, seconds: float
) -> None:
    """As a deployment starts them: each by itself, in any order."""
    redis_server.kill()
    settings = settings_for(tmp_path / "home", redis_url=redis_server.url, embedder="openai:stub", embedder_base_url=model.url)
    system = System(tmp_path / "home", redis_url=redis_server.url, embedder="openai:stub", embedder_base_url=model.url)
    trial = begin(system, "early")
    with beat(settings), worker(settings, "computing", "load,parse,chunk", pool="prefork", concurrency=2) as computing:
        with worker(settings, "waiting", "embed,index", concurrency=4) as waiting:
            end = time.monotonic() + seconds
            until(lambda: time.monotonic() > end, seconds + 5, "time passes")
            assert computing.process.poll() is None and waiting.process.poll() is None
            redis_server.start()
            trial.prove(seconds=120.0)
    system.close()
