"""Status: processes, queues, stages and documents, and what does not work as it should."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

from pipeline.contracts import Lane
from pipeline.packs import cache_group
from pipeline.settings import mask
from workers import broker, queues, runfile
from workers.cache_views import CacheView
from workers.ledger import catalog, nodes, standing, unfinished
from workers.ledger.nodes import Node
from workers.ledger.standing import Standing
from workers.ledger.unfinished import Unfinished
from workers.runtime import Runtime
from workers.views import NodeView, ProcessView, QueueView, StageView, StatusView
from workers.watch import look
from workers.watch.look import Carrier

COLLECTIONS = 1_000
"""Most collections whose part of the cache is counted."""


def status(runtime: Runtime) -> StatusView:
    """What is there, and in `degraded` what does not work. Raises Unavailable when the ledger is away."""
    state = runfile.read(runtime.settings.home)
    up = runfile.alive(state)
    living = nodes.living(runtime.db)
    here, stands = look.carrier(runtime), standing.look(runtime.db)
    views = queue_views(stands, here)
    processes = tuple(_process(entry) for entry in state.processes) if up and state is not None else ()
    url = str(mask("redis_url", state.redis_url if up and state is not None else runtime.settings.redis_url))
    return StatusView(
        up=up,
        redis_url=url,
        processes=processes,
        queues=views,
        documents=stands.by_status(),
        degraded=tuple(_degraded(runtime, here, views, living, up=up)),
        broker=broker.kind(runtime.settings),
        stages=stage_views(stands, standing.per_minute(runtime.db)),
        ahead=ahead(stands, views),
        nodes=tuple(_node(node) for node in living),
        cache=cached(runtime),
    )


def cached(runtime: Runtime) -> CacheView | None:
    """What the answer cache did, and its size. Raises Unavailable when the ledger is away."""
    if runtime.cache is None:
        return None
    return runtime.cache_tally.view([cache_group(row.tenant, row.name) for row in catalog.every(runtime.db)[:COLLECTIONS]])


def queue_views(stands: Standing, here: Carrier) -> dict[str, QueueView]:
    """Every queue with what waits for it."""
    found: dict[str, QueueView] = {}
    for name in queues.all_queues():
        waiting = [one for one in stands.waiting if one.queue == name]
        found[name] = QueueView(
            ready=sum(one.documents for one in waiting),
            queued=stands.open_batches.get((name, "queued"), 0),
            leased=stands.open_batches.get((name, "leased"), 0),
            oldest_s=round(stands.now - min(one.oldest_at for one in waiting), 1) if waiting else None,
            consumers=None if here.consumers is None else here.consumers.get(name, 0),
            depth=None if here.depths is None else here.depths[name].ready,
        )
    return found


def stage_views(stands: Standing, per_minute: dict[str, int]) -> dict[str, StageView]:
    """Every stage, over all lanes."""
    found: dict[str, StageView] = {}
    for stage in queues.ORDER:
        waiting = [one for one in stands.waiting if one.stage == stage]
        working = sum(number for (name, _), number in stands.open_documents.items() if name == stage)
        oldest = round(stands.now - min(one.oldest_at for one in waiting), 1) if waiting else None
        found[stage.value] = StageView(sum(one.documents for one in waiting), working, per_minute.get(stage.value, 0), oldest)
    return found


def ahead(stands: Standing, views: dict[str, QueueView]) -> dict[str, int]:
    """Documents of each lane that were there first; those in a batch are counted by share of its lane's open batches."""
    opened = sum(view.queued + view.leased for view in views.values())
    working = sum(stands.open_documents.values())
    found: dict[str, int] = {}
    for lane in Lane:
        mine = sum(view.queued + view.leased for name, view in views.items() if name.endswith(f".{lane.value}"))
        waiting = sum(one.documents for one in stands.waiting if one.lane == lane.value)
        found[lane.value] = waiting + (round(working * mine / opened) if opened else 0)
    return found


def _degraded(runtime: Runtime, here: Carrier, views: dict[str, QueueView], living: list[Node], *, up: bool) -> Iterator[str]:
    running = up or bool(living)
    if running and here.depths is None:
        yield f"{broker.kind(runtime.settings)}: does not answer"
    if running and here.consumers is not None:
        yield from (f"{name}: nobody consumes it" for name, view in views.items() if not view.consumers)
    if running and look.without_redis(runtime):
        yield "answer cache: off, there is no Redis"
        yield "limits: every process keeps its own, there is no Redis to share them"
    swept = look.sweep_age(nodes.living(runtime.db, within_s=nodes.KEEP_S)) if running else None
    if swept is not None and swept > look.SWEPT_S:
        yield f"sweep: nobody has looked for lost work for {swept:.0f} s"
    yield from _unfinished(unfinished.look(runtime.db))
    yield from (f"{node.name}: runs version {node.code_version}" for node in look.strangers(living))
    yield from (f"{name}: {detail}" for name, detail in look.dependencies(runtime))


def _unfinished(found: Unfinished) -> Iterator[str]:
    if found.oldest_s > look.UNFINISHED_S:
        yield f"deletions: something of what was deleted is still held after {found.oldest_s / 60:.0f} min"
    if found.idle_s > look.UNFINISHED_S:
        yield f"reindex: a generation under construction has stood still for {found.idle_s / 60:.0f} min"


def _node(node: Node) -> NodeView:
    return NodeView(node.name, node.role, node.queues, node.code_version, round(node.seen_s, 1), round(node.progress_s, 1))


def _process(entry: runfile.Entry) -> ProcessView:
    return ProcessView(entry.name, entry.role, entry.pid, tuple(entry.queues), _rss_mb(entry.pid))


def _rss_mb(pid: int) -> float | None:
    try:
        pages = int(Path(f"/proc/{pid}/statm").read_text().split()[1])
    except (OSError, IndexError, ValueError):
        return None
    return round(pages * os.sysconf("SC_PAGE_SIZE") / 1e6, 1)
