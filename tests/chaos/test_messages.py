"""The broker may deliver twice, late, in any order, and what nobody understands: the ledger decides what is done."""

from __future__ import annotations

import json
import os
import random
import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager

import pytest

from pipeline.contracts import Stage
from tests.chaos.conftest import seed
from tests.chaos.proof import Begin, Trial
from tests.chaos.strikes import NODES, recovered
from tests.system import System, until
from workers.app import Publisher, create_app
from workers.ledger.work import Issue

KEY = "dujiang.dujiang.{}.bulk"
BULK = [KEY.format(stage.value) for stage in Stage if stage.value in {"load", "parse", "chunk", "embed", "index"}]


def published(system: System, tenant: str) -> list[Issue]:
    """Every message that was ever sent for a tenant's batches, one for each token they have had."""
    rows = system.rows("SELECT id, token, stages, queue FROM batches WHERE tenant = ?", tenant)
    return [Issue(id_, token, Stage(stages.split(",")[0]), queue) for id_, last, stages, queue in rows for token in range(1, last + 1)]


@contextmanager
def doubling(system: System, tenant: str, publish: Publisher) -> Iterator[set[Issue]]:
    """Send every message once more as soon as it is known; gives those that were."""
    stop, sent = threading.Event(), set[Issue]()

    def again() -> None:
        while not stop.wait(0.01):
            fresh = [issue for issue in published(system, tenant) if issue not in sent]
            publish(fresh)
            sent.update(fresh)

    thread = threading.Thread(target=again, daemon=True)
    thread.start()
    try:
        yield sent
    finally:
        stop.set()
        thread.join()


def test_messages_that_come_twice_and_all_again_after_the_end_change_nothing(system: System, begin: Begin) -> None:
    publish = Publisher(create_app(system.settings, redis_url=system.state().redis_url))
    others = held(system)
    trial = begin(system, "doubled")
    with doubling(system, "doubled", publish) as sent:
        trial.prove()
    assert len(sent) > 5
    before = system.rows("SELECT id, status, token, owner, finished_at FROM batches WHERE tenant = 'doubled'")
    publish(published(system, "doubled") * 2)
    drained(system, others)
    assert system.rows("SELECT id, status, token, owner, finished_at FROM batches WHERE tenant = 'doubled'") == before
    trial.prove()


def held(system: System) -> set[bytes | str]:
    """Messages that are not yet acknowledged; those of a worker that was killed stay so until their time is up."""
    with system.redis() as client:
        return set(client.hkeys("dujiang.unacked"))


def drained(system: System, others: set[bytes | str]) -> None:
    """Wait until every queue is empty and nothing is held unacknowledged beside what was before."""
    until(lambda: not waiting(system) and not held(system) - others, 30.0, "every message was taken")


def waiting(system: System) -> int:
    with system.redis() as client:
        return sum(client.llen(key) for key in BULK)


@contextmanager
def stopped(system: System) -> Iterator[None]:
    """Nobody consumes meanwhile."""
    pids = [system.child(name) for name in NODES]
    for pid in pids:
        os.kill(pid, signal.SIGSTOP)
    try:
        yield
    finally:
        for pid in pids:
            os.kill(pid, signal.SIGCONT)


def test_messages_in_another_order_build_the_same(system: System, begin: Begin) -> None:
    rng = random.Random(seed())
    with stopped(system):
        trial = begin(system, "shuffled")
        with system.redis() as client:
            until(lambda: client.llen(KEY.format("parse")) > 1, 20.0, "messages wait")
            for key in BULK:
                waiting = client.lrange(key, 0, -1)
                rng.shuffle(waiting)
                if waiting:
                    client.delete(key)
                    client.rpush(key, *waiting)
    trial.prove()


STRANGE: dict[str, dict[str, object]] = {
    "a task of another version": {"task": "dujiang.tasks.parse_document", "args": [7, 1]},
    "arguments of another version": {"args": ["parse", {"document": "d1", "attempt": 3}]},
    "too many arguments": {"args": [1, 1, 1]},
    "no arguments": {"args": []},
    "a batch that never was": {"args": [987654321, 1]},
    "another content type": {"content_type": "application/x-python-serialize"},
    "no body": {"body": ""},
    "a body that is cut off": {"body": "W1sxLCAx"},
    "nothing that is known": {"whole": {"hello": "world"}},
}
"""What an older or newer version, or another program, may leave in a queue."""


@pytest.mark.parametrize("queue", ["parse", "index"])
def test_messages_that_nobody_understands_stop_nobody(system: System, begin: Begin, queue: str) -> None:
    """One queue of each kind of pool: processes, and threads."""
    recovered(system)
    nodes, others = {name: system.child(name) for name in NODES}, held(system)
    key = KEY.format(queue)
    with stopped(system):
        trial = begin(system, f"strange-{queue}")
        with system.redis() as client:
            sample = message(system, trial)
            for change in STRANGE.values():
                client.lpush(key, strange(sample, change, queue))
    trial.prove(waste=None)
    drained(system, others)
    assert {name: system.child(name) for name in NODES} == nodes, "a worker was lost"


def test_bytes_that_are_no_message_cost_at_most_a_restart(system: System, begin: Begin) -> None:
    trial = begin(system, "noise")
    with system.redis() as client:
        client.lpush(KEY.format("index"), b"\x00 no JSON at all")
    trial.prove()
    # What the node held when it fell over it stays with it until its time is up.
    until(lambda: not waiting(system), 30.0, "every message was taken")


def message(system: System, trial: Trial) -> dict[str, object]:
    """One of ours, as kombu wrote it."""
    with system.redis() as client:
        raw = until(lambda: client.lindex(KEY.format("parse"), 0), 20.0, "a message waits")
    return json.loads(raw)


def strange(sample: dict[str, object], change: dict[str, object], queue: str) -> bytes:
    import base64

    if "whole" in change:
        return json.dumps(change["whole"]).encode()
    made = json.loads(json.dumps(sample))
    made["headers"]["id"] = made["properties"]["correlation_id"] = f"strange-{abs(hash(str(change)))}"
    made["properties"]["delivery_tag"] = made["headers"]["id"]
    made["properties"]["delivery_info"]["routing_key"] = f"dujiang.{queue}.bulk"
    if "task" in change:
        made["headers"]["task"] = change["task"]
    else:
        made["headers"]["task"] = queue
    if "args" in change:
        made["body"] = base64.b64encode(json.dumps([change["args"], {}, {}]).encode()).decode()
    if "body" in change:
        made["body"] = change["body"]
    if "content_type" in change:
        made["content-type"] = change["content_type"]
    return json.dumps(made).encode()
