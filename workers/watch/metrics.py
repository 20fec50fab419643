"""Prometheus metrics: counts over the ledger, and what the broker says of its queues. Their labels are bounded."""

from __future__ import annotations

import shutil
from collections.abc import Mapping
from pathlib import Path

from workers import costs
from workers.ledger import metering, nodes, outstanding, standing, tallies, unfinished
from workers.ledger.metering import Totals
from workers.ledger.standing import Standing
from workers.ledger.tallies import Tallies
from workers.runtime import Runtime
from workers.watch import look
from workers.watch.exposition import Exposition, folded
from workers.watch.status import cached, queue_views

CODES, MODELS, COLLECTIONS = 40, 8, 100
"""Most values of a label that others may invent; the rest is called ``other``."""


def metrics(runtime: Runtime) -> str:
    """Text exposition format. Raises Unavailable when the ledger is away."""
    out = Exposition()
    stands = standing.look(runtime.db)
    _documents(out, stands, runtime)
    _queues(out, stands, runtime)
    _processes(out, runtime)
    _unfinished(out, runtime)
    totals = metering.totals(runtime.db)
    _batches(out, totals.tallies, runtime)
    _attempts(out, totals)
    _models(out, totals, runtime)
    _machine(out, totals.tallies, runtime)
    return out.text()


def _documents(out: Exposition, stands: Standing, runtime: Runtime) -> None:
    out.gauge("dujiang_documents", "Documents by status.", ("status",), {(status,): number for status, number in stands.by_status().items()})
    places: dict[tuple[str, ...], float] = {}
    for one in stands.waiting:
        places[one.stage, "ready"] = places.get((one.stage, "ready"), 0.0) + one.documents - one.retry
        places[one.stage, "retry"] = places.get((one.stage, "retry"), 0.0) + one.retry
    places |= {labels: float(number) for labels, number in stands.open_documents.items()}
    out.gauge("dujiang_stage_documents", "Unfinished documents by stage and status.", ("stage", "status"), places)
    dead = folded(stands.dead, CODES) if stands.dead else {}
    out.gauge("dujiang_dead_documents", "Dead letters by stage and code.", ("stage", "code"), dead)
    if runtime.settings.metrics_collections:
        found = folded(metering.by_collection(runtime.db), COLLECTIONS)
        out.gauge("dujiang_collection_documents", "Documents that answer, by collection.", ("tenant", "collection"), found)


def _queues(out: Exposition, stands: Standing, runtime: Runtime) -> None:
    here = look.carrier(runtime)
    views = queue_views(stands, here)
    out.gauge("dujiang_queue_ready_documents", "Documents that wait for a queue.", ("queue",), {(name,): view.ready for name, view in views.items()})
    oldest = {(name,): view.oldest_s or 0.0 for name, view in views.items()}
    out.gauge("dujiang_queue_oldest_seconds", "Age of the oldest document that waits for a queue.", ("queue",), oldest)
    opened: dict[tuple[str, ...], float] = {(name, "queued"): view.queued for name, view in views.items()}
    opened |= {(name, "leased"): view.leased for name, view in views.items()}
    out.gauge("dujiang_queue_batches", "Open batches by queue and status.", ("queue", "status"), opened)
    out.gauge("dujiang_queue_messages", "Messages in the broker that nobody has been handed.", ("queue",), {(n,): v.depth for n, v in views.items()})
    out.gauge("dujiang_queue_consumers", "Nodes that listen to a queue.", ("queue",), {(name,): view.consumers for name, view in views.items()})
    out.one(
        "dujiang_broker_up",
        "1 when the broker answers.",
        None if here.depths is None and not runtime.settings.redis_url else float(here.depths is not None),
    )
    out.one("dujiang_broker_unacked_messages", "Messages handed to workers and not acknowledged.", here.unacked)


def _processes(out: Exposition, runtime: Runtime) -> None:
    living = nodes.living(runtime.db)
    lately = nodes.living(runtime.db, within_s=nodes.KEEP_S)
    counts = {(role,): float(sum(node.role == role for node in living)) for role in ("worker", "supervisor", "beat")}
    out.gauge("dujiang_nodes", "Processes that work on this ledger.", ("role",), counts)
    out.one("dujiang_nodes_of_other_version", "Processes of another code version than this one's.", len(look.strangers(living)))
    out.one("dujiang_sweep_age_seconds", "Seconds since somebody looked for lost work.", look.sweep_age(lately))
    ticks = [node.seen_s for node in lately if node.role in ("supervisor", "beat")]
    out.one("dujiang_beat_age_seconds", "Seconds since a supervisor or beat was last heard of.", min(ticks) if ticks else None)
    working = [node.progress_s for node in living if node.role == "worker"]
    out.one("dujiang_worker_progress_age_seconds", "Seconds since any worker took a batch.", min(working) if working else None)
    late, due = metering.lateness(runtime.db)
    out.one("dujiang_schedule_late_seconds", "How long the most overdue schedule has been due.", late)
    out.one("dujiang_schedules_due", "Schedules that are due and not claimed yet.", due)


def _unfinished(out: Exposition, runtime: Runtime) -> None:
    found = unfinished.look(runtime.db)
    left = {(kind,): float(found.deletions.get(kind, 0)) for kind in outstanding.KINDS}
    out.gauge("dujiang_deletions_outstanding", "What deletions have left to be done, by what still holds something.", ("kind",), left)
    out.one("dujiang_deletions_oldest_seconds", "Since the oldest deletion that is not finished was asked for.", found.oldest_s)
    out.one("dujiang_reindex_builds", "Generations under construction.", found.builds)
    out.one("dujiang_reindex_idle_seconds", "The longest that a generation under construction has had no batch begun or ended.", found.idle_s)


def _batches(out: Exposition, counted: Tallies, runtime: Runtime) -> None:
    def of(name: str) -> dict[tuple[str, ...], float]:
        return {labels: value for (kind, labels), value in counted.items() if kind == name}

    out.counter("dujiang_batches_total", "Closed batches by first stage and outcome.", ("stage", "outcome"), of(tallies.BATCHES))
    out.counter("dujiang_batch_documents_total", "Documents in closed batches.", ("stage", "outcome"), of(tallies.DOCUMENTS))
    out.counter("dujiang_lease_expiries_total", "Batches whose worker died or stopped renewing.", ("stage",), of(tallies.EXPIRED))
    out.counter("dujiang_batch_reissues_total", "Messages sent again, because they were lost or given back.", ("stage",), of(tallies.REISSUED))
    done = {(stage,): value for (stage, outcome), value in of(tallies.BATCHES).items() if outcome == "done"}
    text = "Seconds that a batch took, by its first stage."
    out.histogram("dujiang_batch_seconds", text, "stage", tallies.SECONDS, of(tallies.WITHIN), done, of(tallies.SPENT))
    alone = {(name,): value for name, value in runtime.limits.figures().items()}
    out.gauge("dujiang_breaker_open", "1 while a dependency is left alone, because it failed again and again or said so.", ("dependency",), alone)
    text = "Times that a process lost Redis and kept limits of its own."
    out.counter("dujiang_limits_alone_total", text, (), of("limits_alone"))
    text = "Times that cached answers could not be removed; those of an older revision are never served."
    out.counter("dujiang_cache_purge_failures_total", text, (), {(): counted.get((tallies.UNPURGED, ()), 0.0)})
    openings = of("breaker_openings")
    out.counter(
        "dujiang_breaker_openings_total", "Times that a dependency was left alone.", ("dependency",), folded(openings, CODES) if openings else {}
    )
    for name, text in _PROVIDERS.items():
        out.counter(f"dujiang_{name}_total", text, ("provider",), folded(of(name), CODES) if of(name) else {})


_PROVIDERS: Mapping[str, str] = {
    "provider_waits": "Times that work waited for a provider's limit.",
    "provider_wait_seconds": "Seconds that work waited for a provider's limits.",
    "provider_throttles": "Times that a provider said: not so fast.",
}
"""Tallies that whoever limits requests adds to, by provider."""


def _attempts(out: Exposition, totals: Totals) -> None:
    found = folded(totals.attempts, CODES) if totals.attempts else {}
    out.counter("dujiang_attempts_total", "Attempts that did not succeed, by stage, outcome and code.", ("stage", "outcome", "code"), found)


def _models(out: Exposition, totals: Totals, runtime: Runtime) -> None:
    tokens = folded(totals.tokens, MODELS) if totals.tokens else {}
    out.counter("dujiang_model_tokens_total", "Tokens that models reported.", ("part", "direction", "model"), tokens)
    out.counter("dujiang_model_requests_total", "Requests to models.", ("part", "model"), folded(totals.requests, MODELS))
    cost = folded(costs.totals(runtime.prices, totals.tokens), MODELS, at=1)
    text = "What the tokens of models with a price cost."
    out.counter("dujiang_model_cost_total", text, ("part", "model", "currency"), cost)
    out.counter("dujiang_model_retries_total", "Requests to models that had to be repeated.", ("part", "model"), folded(totals.retries, MODELS))


def _cache(out: Exposition, runtime: Runtime) -> None:
    """Counts that all processes share."""
    found = cached(runtime)
    if found is None:
        return
    looked = {
        ("answer", "hit"): float(found.hits),
        ("answer", "miss"): float(found.misses),
        ("evidence", "hit"): float(found.evidence_hits),
        ("completion", "hit"): float(found.completion_hits),
    }
    out.counter("dujiang_cache_lookups_total", "What the answer cache did for questions, of all processes.", ("level", "outcome"), looked)
    text = "Questions that waited for the answer of somebody who asked the same."
    out.counter("dujiang_cache_waits_total", text, (), {(): float(found.waits)})
    text = "Answers, packs and completions that are kept, counted once for each collection."
    out.one("dujiang_cache_entries", text, float(found.entries))


def _spending(out: Exposition, runtime: Runtime) -> None:
    """What questions of this process spent; labels are parts, directions and one currency."""
    spent = runtime.spending.read()

    def of(kind: str) -> dict[tuple[str, ...], float]:
        return {labels[1:]: value for labels, value in spent.items() if labels[0] == kind}

    out.counter("dujiang_question_tokens_total", "Tokens that questions cost, as models reported them.", ("part", "direction"), of("tokens"))
    out.counter("dujiang_question_cost_total", "What questions cost, of requests with a known cost.", ("part", "currency"), of("cost"))
    out.counter("dujiang_question_unpriced_requests_total", "Requests of questions without a known cost.", ("part",), of("unpriced"))
    text = "Answers whose passages support too few of their sentences, by what became of them."
    out.counter("dujiang_question_ungrounded_total", text, ("action",), of("grounding"))


def _machine(out: Exposition, counted: Tallies, runtime: Runtime) -> None:
    out.one("dujiang_artifact_bytes", "Size of the artifacts when they were last tidied.", counted.get(("artifact_bytes", ())))
    home = Path(runtime.settings.home)
    if home.exists():
        usage = shutil.disk_usage(home)
        out.one("dujiang_disk_free_bytes", "Free space where the data folder is.", usage.free)
        out.one("dujiang_disk_size_bytes", "Size of the disk where the data folder is.", usage.total)
    _spending(out, runtime)
    _cache(out, runtime)
    asked = runtime.figures.read()
    out.counter("dujiang_questions_total", "Questions answered by this process, by what the answer cache did.", ("cache",), asked)
