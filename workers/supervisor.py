"""The supervisor: starts server, workers and ways in, keeps them alive and busy, feeds and sweeps, and stops them all."""

from __future__ import annotations

import signal
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from itertools import chain
from types import FrameType

from pipeline.contracts import Stage
from pipeline.errors import PipelineError, Unavailable
from pipeline.settings import Settings, child_environment, load
from workers import app as application
from workers import broker, processes, queues, runfile, server, tasks
from workers.housekeeping import Housekeeping
from workers.ledger import nodes, sources, sweeping
from workers.processes import Child
from workers.runtime import Runtime
from workers.watch.notices import Notices

TICK_S = 0.25
READY_S = 60.0
GRACE_S = 25.0
RESTART_PAUSE_S = 1.0
RESERVED = 1
"""Processes or threads of each pool beyond those that bulk may take: an upload does not wait until a batch of somebody else's is done."""
RESTART_LIMIT = 8
"""Restarts of one process within its first minute of life before the supervisor gives up on it."""

Echo = Callable[[str], None]


@dataclass(frozen=True, slots=True)
class Plan:
    """One process that shall run."""

    name: str
    role: str
    command: tuple[str, ...]
    queues: tuple[str, ...] = ()


def plan(settings: Settings, runtime: Runtime, *, ways_in: bool) -> list[Plan]:
    """Pools by stage: processes where it computes, threads where it waits, one process for the embedded index."""
    profile = runtime.profile
    computing, waiting = [Stage.PARSE, Stage.CHUNK], [Stage.LOAD]
    (computing if profile.in_process else waiting).append(Stage.EMBED)
    embedded = settings.store_url.startswith("sqlite")
    if not embedded:
        waiting.append(Stage.INDEX)
    plans = [
        _worker("compute", computing, "prefork", runtime.processes + RESERVED, events=ways_in),
        _worker("network", waiting, "threads", settings.worker_threads + RESERVED, events=ways_in),
    ]
    if embedded:
        plans.append(_worker("index", [Stage.INDEX], "threads", 1 + RESERVED, events=ways_in))
    if runtime.graph_extractor:
        plans.append(_worker("graph", [Stage.GRAPH], "threads", 1, events=ways_in))
    if ways_in:
        plans.append(Plan("api", "api", (sys.executable, "-m", "api.serve")))
        plans.append(Plan("flower", "flower", (sys.executable, "-m", "workers.flower")))
    return plans


def _worker(name: str, stages: Sequence[Stage], pool: str, concurrency: int, *, events: bool) -> Plan:
    served = tuple(name for name in queues.declared() if queues.stage_of(name) in stages)
    options = {"--name": name, "--queues": ",".join(served), "--pool": pool, "--concurrency": str(concurrency)}
    quiet = () if events else ("--no-events",)
    return Plan(name, "worker", (sys.executable, "-m", "workers.worker", *chain.from_iterable(options.items()), *quiet), served)


class Supervisor:
    """Owns one data folder for as long as it runs. Create and run it in the main thread."""

    def __init__(self, settings: Settings, *, ways_in: bool, echo: Echo | None) -> None:
        self.settings = settings
        self._ways_in, self._echo = ways_in, echo
        self._children: list[Child] = []
        self._plans: list[Plan] = []
        self._keeper: Housekeeping | None = None
        self._stopping = False
        self._notices = Notices(self._say)

    def run(self) -> None:
        """Start everything, then watch until a signal. Raises Conflict when the folder has an owner, Unavailable, BadRequest."""
        with runfile.Owner(self.settings.home):
            signal.signal(signal.SIGTERM, self._on_signal)
            signal.signal(signal.SIGINT, self._on_signal)
            before = _end_orphans(self.settings.home)
            try:
                self._start(before)
                self._watch()
            finally:
                self._stop()

    def _on_signal(self, _number: int, _frame: FrameType | None) -> None:
        self._stopping = True

    def _start(self, before: Sequence[runfile.Entry]) -> None:
        redis: Child | None = None
        # Where RabbitMQ carries the messages, a Redis of this host's own would share limits and answers with nobody.
        if not self.settings.redis_url and broker.is_redis(self.settings):
            redis, url = server.start(self.settings, self._echo)
            self._children.append(redis)
            self.settings = replace(self.settings, redis_url=url)
        runtime = Runtime(self.settings, node="supervisor")
        runtime.db.migrate()
        runtime.broker.ping()
        runtime.artifacts.shelf.check()
        self._runtime = runtime
        self._app = application.create_app(self.settings)
        self._feeder = tasks.make_feeder(runtime, self._app)
        self._keeper = Housekeeping(self._feeder, runtime)
        for entry in before:
            _, issues = sweeping.orphaned(runtime.db, f"{processes.node_name(entry.name, entry.pid)}:")
            sources.freed(runtime.db, f"{processes.node_name(entry.name, entry.pid)}:")
            self._feeder.send(issues)
        self._plans = plan(self.settings, runtime, ways_in=self._ways_in)
        _refuse_unserved(self._plans)
        for wanted in self._plans:
            self._spawn(wanted)
        self._write(ready=False)
        self._await_consumers()
        self._write(ready=True)

    def _spawn(self, wanted: Plan, restarts: int = 0) -> None:
        log = runfile.folder(self.settings.home) / "logs" / f"{wanted.name}.log"
        child = processes.spawn(
            wanted.name, wanted.role, wanted.command, env=child_environment(self.settings), log=log, echo=self._echo, queues=wanted.queues
        )
        child.restarts, child.started_at = restarts, time.monotonic()
        self._children.append(child)

    def _await_consumers(self) -> None:
        """A queue that nobody consumes is refused at start: its documents would wait for ever. Workers of another host do not count for ours."""
        until = time.monotonic() + READY_S
        while not self._stopping:
            living = {node.name for node in nodes.living(self._runtime.db)}
            silent = [queue for child in self._children if child.role == "worker" and child.node not in living for queue in child.queues]
            silent = silent or [queue for queue, number in broker.consumers(self._runtime.broker, self._runtime.db).items() if not number]
            if not silent:
                return
            dead = [child for child in self._children if child.role == "worker" and not child.running()]
            if dead or time.monotonic() > until:
                who = f"; {dead[0].name} exited, see run/logs/{dead[0].name}.log" if dead else ""
                raise Unavailable(f"nobody consumes {', '.join(silent)}{who}", hint="`dujiang logs` shows why.", code="queue_without_consumer")
            time.sleep(0.05)

    def _watch(self) -> None:
        assert self._keeper is not None
        self._notices.begin(self._runtime)
        while not self._stopping:
            self._revive()
            try:
                self._keeper.turn()
                workers = {child.node: child for child in self._children if child.role == "worker"}
                for node in self._keeper.stuck(list(workers)):
                    self._say(f"{workers[node].name} makes no progress: restarting it")
                    processes.kill(workers[node])
            except Unavailable as error:
                self._notices.hear([f"{error.code}: {error.detail}"], all_there_is=False)
                time.sleep(1.0)
            time.sleep(TICK_S)

    def _revive(self) -> None:
        """Start again whatever exited, and take over the leases of workers that did."""
        for child in [child for child in self._children if not child.running()]:
            self._children.remove(child)
            self._say(f"{child.name} exited with {child.process.returncode}")
            at_work = child.role == "worker" and self._take_over(child)
            young = time.monotonic() - child.started_at < 60.0
            # What kills a worker at work is found by halving its batch; what dies idle and young cannot run at all.
            restarts = child.restarts + (not at_work) if young else 1
            if restarts > RESTART_LIMIT:
                raise Unavailable(
                    f"{child.name} exits again and again", hint=f"Look at run/logs/{child.name}.log in the data folder.", code="crash_loop"
                )
            if young and restarts > 2:
                time.sleep(RESTART_PAUSE_S)
            if child.role == "redis":
                redis, _ = server.start(self.settings, self._echo)
                redis.restarts, redis.started_at = restarts, time.monotonic()
                self._children.append(redis)
            else:
                self._spawn(next(wanted for wanted in self._plans if wanted.name == child.name), restarts)
            self._write(ready=True)

    def _take_over(self, child: Child) -> bool:
        """End its leases; True when it held one."""
        try:
            nodes.withdraw(self._runtime.db, child.node)
            ended, issues = sweeping.orphaned(self._runtime.db, f"{child.node}:")
            sources.freed(self._runtime.db, f"{child.node}:")
        except Unavailable as error:
            self._say(error.detail)
            return False
        self._feeder.send(issues)
        return ended > 0

    def _write(self, *, ready: bool) -> None:
        settings = self.settings
        entries = [runfile.Entry("supervisor", "supervisor", _own_pid())]
        entries += [runfile.Entry(child.name, child.role, child.pid, child.queues) for child in self._children]
        api = f"http://{settings.host}:{settings.port}{settings.root_path}" if self._ways_in else ""
        flower = f"http://127.0.0.1:{settings.port + 1}" if self._ways_in else ""
        pid = _own_pid()
        state = runfile.State(pid, time.time(), settings.redis_url, api, flower, ready, tuple(entries), runfile.born(pid))
        runfile.write(settings.home, state)

    def _stop(self) -> None:
        """Ways in first, then workers (they finish what they hold, or it is given back for them), the server last."""
        self._notices.end()
        for role in (("api", "flower"), ("worker",), ("redis",)):
            processes.stop([child for child in self._children if child.role in role], grace_s=GRACE_S)
            if "worker" in role:
                self._give_back()
        if self._keeper is not None:
            self._keeper.close()
        runfile.clear(self.settings.home)

    def _give_back(self) -> None:
        for child in [child for child in self._children if child.role == "worker"]:
            try:
                sweeping.given_back(self._runtime.db, f"{child.node}:")
                sources.freed(self._runtime.db, f"{child.node}:")
                nodes.withdraw(self._runtime.db, child.node)
            except Unavailable as error:
                self._say(error.detail)

    def _say(self, text: str) -> None:
        if self._echo is not None:
            self._echo(f"{'dujiang':<9}| {text}")


def _refuse_unserved(plans: Sequence[Plan]) -> None:
    served = {queue for wanted in plans for queue in wanted.queues}
    missing = [queue for queue in queues.all_queues() if queue not in served]
    if missing:
        raise Unavailable(f"no worker would consume {', '.join(missing)}", code="queue_without_consumer")


def _end_orphans(home: str) -> tuple[runfile.Entry, ...]:
    """End the workers and servers of a supervisor that was killed, where the kernel has no death signal; gives all that it had."""
    state = runfile.read(home)
    if state is None or runfile.alive(state):
        return ()
    import os

    for entry in state.processes:
        if runfile.exists(entry.pid) and runfile.is_ours(entry.pid):
            os.kill(entry.pid, signal.SIGKILL)
    return state.processes


def _own_pid() -> int:
    import os

    return os.getpid()


def main(arguments: Sequence[str] | None = None) -> None:
    """``python -m workers.supervisor [--bare] [--quiet]``: what `up` and `ingest` start."""
    given = list(sys.argv[1:] if arguments is None else arguments)
    echo: Echo | None = None if "--quiet" in given else lambda line: print(line, flush=True)
    try:
        Supervisor(load().settings, ways_in="--bare" not in given, echo=echo).run()
    except PipelineError as error:
        print(f"{error.code}: {error.detail}\n{error.hint}", file=sys.stderr, flush=True)
        raise SystemExit(1) from None


if __name__ == "__main__":
    main()
