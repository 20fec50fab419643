"""The supervisor's decisions: who serves what, who is started again, who is stuck."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from sqlalchemy import insert, update

from pipeline.contracts import Lane, Stage
from pipeline.errors import Conflict, Unavailable
from tests.system import living, settings_for, until
from workers import processes, queues, runfile, supervisor
from workers.feeder import Feeder, windows
from workers.housekeeping import Housekeeping
from workers.ledger import nodes
from workers.ledger.schema import batches, documents
from workers.ledger.watched import nodes as node_rows
from workers.processes import node_name, spawn
from workers.runtime import Runtime
from workers.supervisor import RESTART_LIMIT, Plan, Supervisor, plan

ELASTICSEARCH = "elasticsearch+http://127.0.0.1:9200"


@pytest.fixture
def runtime(tmp_path: Path) -> Iterator[Runtime]:
    opened = Runtime(settings_for(tmp_path), node="test")
    opened.db.migrate()
    yield opened
    opened.close()


@pytest.mark.parametrize("embedder", ["hashed", "openai:text-embedding-3-small"])
@pytest.mark.parametrize("store", ["", ELASTICSEARCH])
def test_every_queue_is_served_by_exactly_one_kind_of_worker(tmp_path: Path, embedder: str, store: str) -> None:
    settings = settings_for(tmp_path, embedder=embedder, **({"store_url": store} if store else {}))
    runtime = Runtime(settings)
    plans = plan(settings, runtime, ways_in=False)
    runtime.close()
    assert sorted(queue for wanted in plans for queue in wanted.queues) == sorted(queues.all_queues())


def served(settings_flags: dict[str, str], home: Path) -> dict[str, set[Stage]]:
    settings = settings_for(home, **settings_flags)
    runtime = Runtime(settings)
    found = {wanted.name: {queues.stage_of(queue) for queue in wanted.queues} for wanted in plan(settings, runtime, ways_in=False)}
    runtime.close()
    return found


def test_what_computes_gets_processes_and_what_waits_gets_threads(tmp_path: Path) -> None:
    own = served({}, tmp_path)
    assert own == {"compute": {Stage.PARSE, Stage.CHUNK, Stage.EMBED}, "network": {Stage.LOAD}, "index": {Stage.INDEX}}
    remote = served({"embedder": "openai:m", "store_url": ELASTICSEARCH}, tmp_path)
    assert remote == {"compute": {Stage.PARSE, Stage.CHUNK}, "network": {Stage.LOAD, Stage.EMBED, Stage.INDEX}}


def test_a_queue_that_no_worker_would_consume_is_refused(runtime: Runtime) -> None:
    plans = plan(runtime.settings, runtime, ways_in=False)
    with pytest.raises(Unavailable, match=r"dujiang\.index\.interactive") as refused:
        supervisor._refuse_unserved([wanted for wanted in plans if wanted.name != "index"])
    assert refused.value.code == "queue_without_consumer"


# ---------------------------------------------------------------- starting again


def watched(runtime: Runtime, code: str) -> Supervisor:
    """A supervisor over one worker that runs `code`, without server and signals."""
    made = Supervisor(runtime.settings, ways_in=False, echo=None)
    made._runtime = runtime
    made._feeder = Feeder(runtime.db, windows(runtime.profile, processes=1, threads=1), lambda issues: None)
    made._plans = [Plan("index", "worker", (sys.executable, "-S", "-c", code))]
    made._spawn(made._plans[0])
    return made


def lease(runtime: Runtime, node: str, document: str = "") -> int:
    """A batch that `node` works on."""
    with runtime.db.write() as connection:
        now = time.time()
        values = {"tenant": "default", "collection_id": "c", "stages": "index", "lane": Lane.BULK.value, "queue": "dujiang.index.bulk"}
        times = {"created_at": now, "lease_until": now + 60, "deadline": now + 900}
        made = connection.execute(insert(batches).values(**values, **times, status="leased", owner=f"{node}:1:1").returning(batches.c.id))
        number = int(made.scalar_one())
        if document:
            connection.execute(update(documents).where(documents.c.id == document).values(batch_id=number))
    return number


def revive(made: Supervisor, *, at_work: bool) -> None:
    (child,) = made._children
    if at_work:
        lease(made._runtime, child.node)
    child.process.wait()
    made._revive()


def test_a_worker_that_cannot_start_is_given_up_with_the_name_of_its_log(runtime: Runtime, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(supervisor, "RESTART_PAUSE_S", 0.0)
    made = watched(runtime, "raise SystemExit(3)")
    with pytest.raises(Unavailable) as given_up:
        for _ in range(RESTART_LIMIT + 1):
            revive(made, at_work=False)
    assert given_up.value.code == "crash_loop" and "index.log" in given_up.value.hint


def test_a_worker_that_its_documents_kill_is_started_again_as_often_as_halving_needs(runtime: Runtime, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(supervisor, "RESTART_PAUSE_S", 0.0)
    made = watched(runtime, "raise SystemExit(3)")
    for _ in range(2 * RESTART_LIMIT):
        revive(made, at_work=True)
    (child,) = made._children
    child.process.wait()


def test_a_stop_gives_back_what_a_worker_did_not_finish_and_blames_no_document(runtime: Runtime) -> None:
    made = watched(runtime, "import signal; signal.pause()")
    mine, other = lease(runtime, made._children[0].node), lease(runtime, node_name("index", 2**22 + 1))
    made._stop()
    with runtime.db.read() as connection:
        found = {row.id: (row.status, row.token, row.owner) for row in connection.execute(batches.select())}
    assert found[mine] == ("queued", 2, "")
    assert found[other][:2] == ("leased", 1)


# ---------------------------------------------------------------- one owner


def test_a_second_system_on_the_same_folder_is_refused_and_told_who_has_it(tmp_path: Path) -> None:
    settings = settings_for(tmp_path)
    with runfile.Owner(settings.home), pytest.raises(Conflict, match=str(os.getpid())) as refused:
        Supervisor(settings, ways_in=False, echo=None).run()
    assert refused.value.code == "home_in_use"


def test_a_run_file_of_a_process_whose_number_somebody_else_has_now_is_not_alive(tmp_path: Path) -> None:
    """In a container the killed supervisor's number is soon in use again."""
    mine = os.getpid()
    state = runfile.State(mine, 0.0, "", "", "", True, (), runfile.born(mine))
    assert runfile.alive(state)
    assert not runfile.alive(runfile.State(mine, 0.0, "", "", "", True, (), runfile.born(mine) - 1))


# ---------------------------------------------------------------- processes


def test_what_does_not_end_when_asked_is_killed_with_all_that_it_started(tmp_path: Path) -> None:
    code = "import signal, subprocess, sys; signal.signal(signal.SIGTERM, signal.SIG_IGN)\n"
    code += "print(subprocess.Popen([sys.executable, '-S', '-c', 'import signal; signal.pause()']).pid, flush=True); signal.pause()"
    log = tmp_path / "stubborn.log"
    child = spawn("stubborn", "worker", (sys.executable, "-S", "-c", code), env=None, log=log, echo=None)
    text = until(lambda: log.exists() and log.read_text().strip(), 10.0, "it has started its own child")
    pids = {child.pid, int(text)}
    processes.stop([child], grace_s=0.1)
    until(lambda: not living(pids), 5.0, "both are gone")


def test_a_child_dies_with_its_parent_however_that_dies(tmp_path: Path) -> None:
    code = "import pathlib, signal, sys; from workers.processes import spawn\n"
    code += f"log = pathlib.Path({str(tmp_path / 'child.log')!r})\n"
    code += "child = spawn('child', 'worker', (sys.executable, '-S', '-c', 'import signal; signal.pause()'), env=None, log=log, echo=None)\n"
    code += "print(child.pid, flush=True); signal.pause()"
    parent = subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE, text=True, cwd=Path(__file__).parents[2])
    assert parent.stdout is not None
    with parent.stdout:
        pid = int(parent.stdout.readline())
        assert living({pid})
        parent.send_signal(signal.SIGKILL)
        parent.wait()
    until(lambda: not living({pid}), 5.0, "the child is gone")


# ---------------------------------------------------------------- stuck


def node(name: str, *, idle_s: float) -> tuple[str, float]:
    return name, idle_s


def keeper(runtime: Runtime, *announced: tuple[str, float]) -> Housekeeping:
    for name, idle_s in announced:
        nodes.announce(runtime.db, name, "worker", 1, ("dujiang.index.bulk",))
        with runtime.db.write() as connection:
            connection.execute(update(node_rows).where(node_rows.c.name == name).values(progress_at=time.time() - idle_s))
    return Housekeeping(Feeder(runtime.db, windows(runtime.profile, processes=1, threads=1), lambda issues: None), runtime)


def wait_unclaimed(runtime: Runtime, seconds: float) -> None:
    """A batch that was published so long ago and that nobody has claimed."""
    number = lease(runtime, "nobody")
    with runtime.db.write() as connection:
        values = {"status": "queued", "owner": "", "published_at": time.time() - seconds}
        connection.execute(update(batches).where(batches.c.id == number).values(**values))


def test_a_worker_that_answers_but_takes_nothing_while_work_waits_is_named(runtime: Runtime) -> None:
    wait_unclaimed(runtime, 120.0)
    idle, busy, foreign = node("index@a-1", idle_s=120.0), node("index@a-2", idle_s=1.0), node("index@b-1", idle_s=120.0)
    assert keeper(runtime, idle, busy, foreign).stuck(["index@a-1", "index@a-2"]) == ["index@a-1"]


def test_a_worker_in_the_middle_of_a_long_batch_is_left_alone(runtime: Runtime) -> None:
    wait_unclaimed(runtime, 120.0)
    lease(runtime, "index@a-1")
    assert keeper(runtime, node("index@a-1", idle_s=120.0)).stuck(["index@a-1"]) == []


def test_nobody_is_stuck_while_nothing_waits(runtime: Runtime) -> None:
    wait_unclaimed(runtime, 1.0)
    assert keeper(runtime, node("index@a-1", idle_s=120.0)).stuck(["index@a-1"]) == []
