"""Status, doctor and metrics: what runs, what waits, what is wrong."""

from __future__ import annotations

import os
import platform
import shutil
from collections.abc import Iterator, Mapping
from importlib import metadata
from pathlib import Path

from pipeline.errors import PipelineError, Unavailable
from pipeline.settings import mask
from workers import broker, runfile
from workers.ledger import browse, metering
from workers.runtime import Runtime
from workers.views import CheckView, ProcessView, StatusView

OURS = ("pipeline", "graphrag", "workers", "api")


def _consumers(runtime: Runtime) -> Mapping[str, int] | None:
    if broker.is_redis(runtime.settings) and not (runtime.settings.broker_url or runtime.settings.redis_url):
        return None
    try:
        return broker.consumers(runtime.broker, runtime.db)
    except Unavailable:
        return None


def status(runtime: Runtime) -> StatusView:
    """Processes, queues and documents; what does not work is named in `degraded`."""
    state = runfile.read(runtime.settings.home)
    up = runfile.alive(state)
    consumers = _consumers(runtime)
    degraded: list[str] = []
    if up and consumers is None:
        degraded.append("redis: does not answer")
    queues = browse.queue_views(runtime.db, consumers)
    for name, view in queues.items():
        if up and consumers is not None and not view.consumers:
            degraded.append(f"{name}: nobody consumes it")
    degraded += [f"{name}: {detail}" for name, detail in _dependencies(runtime)]
    processes = tuple(_process(entry) for entry in state.processes) if up and state is not None else ()
    url = str(mask("redis_url", state.redis_url if up and state is not None else runtime.settings.redis_url))
    return StatusView(up, url, processes, queues, browse.document_statuses(runtime.db), tuple(degraded))


def _dependencies(runtime: Runtime) -> Iterator[tuple[str, str]]:
    if runtime.settings.store_url.startswith("elasticsearch"):
        try:
            runtime.reader_store.frequencies("dujiang-readiness-g0", ())
        except Unavailable as error:
            yield "store", error.detail
        except PipelineError:
            return


def _process(entry: runfile.Entry) -> ProcessView:
    return ProcessView(entry.name, entry.role, entry.pid, tuple(entry.queues), _rss_mb(entry.pid))


def _rss_mb(pid: int) -> float | None:
    try:
        pages = int(Path(f"/proc/{pid}/statm").read_text().split()[1])
    except (OSError, IndexError, ValueError):
        return None
    return round(pages * os.sysconf("SC_PAGE_SIZE") / 1e6, 1)


def doctor(runtime: Runtime) -> list[CheckView]:
    """Everything that commonly goes wrong, one finding each."""
    return [*_python(), *_packages(), _folder(runtime), _ledger(runtime), _redis(runtime), _store(runtime), _embedder(runtime), _queues(runtime)]


def _python() -> Iterator[CheckView]:
    yield CheckView("python", True, f"Python {platform.python_version()} on {platform.system()} {platform.machine()}")


def _packages() -> Iterator[CheckView]:
    owners = metadata.packages_distributions()
    for name in OURS:
        foreign = sorted(set(owners.get(name, [])) - {"dujiang"})
        where = f"{name} comes from {', '.join(foreign)}" if foreign else f"{name} is ours"
        yield CheckView(f"package {name}", not foreign, where, f"pip uninstall {' '.join(foreign)}" if foreign else "")


def _folder(runtime: Runtime) -> CheckView:
    home = Path(runtime.settings.home)
    probe = home if home.exists() else home.parent
    while not probe.exists():
        probe = probe.parent
    free = shutil.disk_usage(probe).free // 1_000_000
    fine = os.access(probe, os.W_OK) and free > 500
    return CheckView("data folder", fine, f"{home}: {free} MB free", "" if fine else "Free space, or set DUJIANG_HOME to a folder you can write.")


def _ledger(runtime: Runtime) -> CheckView:
    try:
        browse.document_statuses(runtime.db)
    except PipelineError as error:
        return CheckView("ledger", False, error.detail, error.hint)
    return CheckView("ledger", True, str(mask("ledger_url", runtime.settings.ledger_url)))


def _redis(runtime: Runtime) -> CheckView:
    if not runtime.settings.redis_url:
        return CheckView("redis", True, "none given: `dujiang up` starts its own server")
    try:
        runtime.broker.ping()
    except Unavailable as error:
        return CheckView("redis", False, error.detail, error.hint)
    return CheckView("redis", True, str(mask("redis_url", runtime.settings.redis_url)))


def _store(runtime: Runtime) -> CheckView:
    shown = str(mask("store_url", runtime.settings.store_url))
    for name, detail in _dependencies(runtime):
        return CheckView(name, False, detail, "Start it, or correct DUJIANG_STORE_URL.")
    return CheckView("store", True, shown)


def _embedder(runtime: Runtime) -> CheckView:
    try:
        profile = runtime.profile
    except PipelineError as error:
        return CheckView("embedder", False, error.detail, error.hint)
    return CheckView("embedder", True, f"{profile.name}, revision {profile.revision}")


def _queues(runtime: Runtime) -> CheckView:
    consumers = _consumers(runtime)
    if consumers is None or not runfile.alive(runfile.read(runtime.settings.home)):
        return CheckView("queues", True, "nothing is running")
    silent = [name for name, number in consumers.items() if not number]
    if silent:
        return CheckView("queues", False, f"nobody consumes {', '.join(silent)}", "Start a worker for them: dujiang worker --queues …")
    return CheckView("queues", True, f"all {len(consumers)} have a consumer")


def metrics(runtime: Runtime) -> str:
    """Prometheus text exposition, all of it COUNTs over the ledger and announcements in Redis; labels are bounded."""
    lines: list[str] = []

    def family(name: str, kind: str, text: str, samples: Mapping[str, float]) -> None:
        lines.extend((f"# HELP {name} {text}", f"# TYPE {name} {kind}"))
        lines.extend(f"{name}{labels} {value:g}" for labels, value in samples.items())

    family("dujiang_documents", "gauge", "Documents by status.", {f'{{status="{k}"}}': v for k, v in browse.document_statuses(runtime.db).items()})
    places = metering.documents_by_stage(runtime.db)
    family(
        "dujiang_documents_stage",
        "gauge",
        "Unfinished documents by stage and status.",
        {f'{{stage="{a}",status="{b}"}}': n for (a, b), n in places.items()},
    )
    consumers = _consumers(runtime)
    views = browse.queue_views(runtime.db, consumers)
    family("dujiang_queue_ready_documents", "gauge", "Documents that wait for a queue.", {f'{{queue="{k}"}}': v.ready for k, v in views.items()})
    family(
        "dujiang_queue_batches",
        "gauge",
        "Open batches.",
        {f'{{queue="{k}",status="{s}"}}': getattr(v, s) for k, v in views.items() for s in ("queued", "leased")},
    )
    family(
        "dujiang_queue_oldest_seconds",
        "gauge",
        "Age of the oldest document that waits.",
        {f'{{queue="{k}"}}': v.oldest_s or 0.0 for k, v in views.items()},
    )
    if consumers is not None:
        family("dujiang_queue_consumers", "gauge", "Nodes that listen to a queue.", {f'{{queue="{k}"}}': n for k, n in consumers.items()})
    totals = metering.totals(runtime.db)
    family(
        "dujiang_batches_total",
        "counter",
        "Closed batches by first stage and outcome.",
        {f'{{stage="{a}",outcome="{b}"}}': n for (a, b), n in totals.batches.items()},
    )
    family(
        "dujiang_batch_seconds_total",
        "counter",
        "Seconds spent in batches, by first stage.",
        {f'{{stage="{k}"}}': v for k, v in totals.seconds.items()},
    )
    family(
        "dujiang_attempts_total",
        "counter",
        "Attempts that did not succeed.",
        {f'{{stage="{a}",outcome="{b}"}}': n for (a, b), n in totals.attempts.items()},
    )
    family("dujiang_model_tokens_total", "counter", "Tokens reported by models.", {f'{{part="{k}"}}': v for k, v in totals.tokens.items()})
    family("dujiang_model_requests_total", "counter", "Requests to models.", {f'{{part="{k}"}}': v for k, v in totals.requests.items()})
    return "\n".join(lines) + "\n"
