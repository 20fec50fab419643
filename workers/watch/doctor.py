"""Doctor: everything that commonly goes wrong, one finding each, with its cure."""

from __future__ import annotations

import os
import platform
import shutil
import stat
import time
from collections.abc import Iterator
from importlib import metadata
from pathlib import Path

from pipeline.errors import PipelineError, Unavailable
from pipeline.settings import mask
from workers import broker, runfile
from workers.ledger import nodes, standing
from workers.ledger.batches import CODE_VERSION
from workers.ledger.nodes import Node
from workers.runtime import Runtime
from workers.views import CheckView
from workers.watch import look

OURS = ("pipeline", "graphrag", "workers", "api")
FREE_MB = 500
FREE_SHARE = 0.05
"""Below both of these a disk is nearly full: 5 % of a large one is still plenty."""
FREE_PLENTY_MB = 20_000


def doctor(runtime: Runtime) -> list[CheckView]:
    """One finding each; nothing here raises."""
    living = _living(runtime)
    return [
        *_python(),
        *_packages(),
        *_folders(runtime),
        _permissions(runtime),
        _ledger(runtime),
        _clock(runtime, living),
        _versions(living),
        _redis(runtime),
        _broker(runtime),
        _store(runtime),
        _embedder(runtime),
        _queues(runtime, living),
        _sweep(runtime, living),
    ]


def _living(runtime: Runtime) -> list[Node]:
    try:
        return nodes.living(runtime.db)
    except PipelineError:
        return []


def _python() -> Iterator[CheckView]:
    yield CheckView("python", True, f"Python {platform.python_version()} on {platform.system()} {platform.machine()}")


def _packages() -> Iterator[CheckView]:
    owners = metadata.packages_distributions()
    for name in OURS:
        foreign = sorted(set(owners.get(name, [])) - {"dujiang"})
        where = f"{name} comes from {', '.join(foreign)}" if foreign else f"{name} is ours"
        yield CheckView(f"package {name}", not foreign, where, f"pip uninstall {' '.join(foreign)}" if foreign else "")


def _folders(runtime: Runtime) -> Iterator[CheckView]:
    yield _folder("data folder", Path(runtime.settings.home), "Free space, or set DUJIANG_HOME to a folder you can write.")
    shelf = runtime.artifacts.shelf
    if shelf.distant:
        yield _distant(runtime)
    elif not Path(shelf.where).is_relative_to(runtime.settings.home):
        yield _folder("artifacts", Path(shelf.where), "Free space, or correct DUJIANG_ARTIFACTS_URL.")


def _distant(runtime: Runtime) -> CheckView:
    """Writes something small, and removes it: that needs more rights than reading."""
    try:
        runtime.artifacts.shelf.check()
    except PipelineError as error:
        return CheckView("artifacts", False, error.detail, error.hint)
    return CheckView("artifacts", True, runtime.artifacts.shelf.where)


def _folder(name: str, folder: Path, hint: str) -> CheckView:
    probe = folder
    while not probe.exists() and probe != probe.parent:
        probe = probe.parent
    usage = shutil.disk_usage(probe)
    free = usage.free // 1_000_000
    full = free <= FREE_MB or (usage.free < FREE_SHARE * usage.total and free < FREE_PLENTY_MB)
    fine = os.access(probe, os.W_OK) and not full
    return CheckView(name, fine, f"{folder}: {free} MB free of {usage.total // 1_000_000}", "" if fine else hint)


def _permissions(runtime: Runtime) -> CheckView:
    """Documents lie in there: others of this machine must not be able to change them, and we must own them."""
    home = Path(runtime.settings.home)
    if not home.exists():
        return CheckView("permissions", True, f"{home} does not exist yet")
    found = home.stat()
    if found.st_uid != os.geteuid():
        return CheckView("permissions", False, f"{home} belongs to user {found.st_uid}, not to {os.geteuid()}", "Run as its owner, or chown -R it.")
    if found.st_mode & stat.S_IWOTH:
        return CheckView("permissions", False, f"every user of this machine can write {home}", f"chmod o-w {home}")
    sealed = [path.name for path in home.iterdir() if not os.access(path, os.R_OK | os.W_OK)]
    if sealed:
        return CheckView(
            "permissions", False, f"cannot write {', '.join(sorted(sealed))} in {home}", "chown -R it to the user that runs the workers."
        )
    return CheckView("permissions", True, f"{home} is writable by its owner")


def _ledger(runtime: Runtime) -> CheckView:
    try:
        standing.look(runtime.db)
    except PipelineError as error:
        return CheckView("ledger", False, error.detail, error.hint)
    return CheckView("ledger", True, str(mask("ledger_url", runtime.settings.ledger_url)))


def _clock(runtime: Runtime, living: list[Node]) -> CheckView:
    """Leases go by the ledger's clock, so a wrong one costs no document; logs, tokens of services and schedules suffer."""
    try:
        with runtime.db.read() as connection:
            ahead = time.time() - runtime.db.now(connection)
    except PipelineError as error:
        return CheckView("clock", False, error.detail, error.hint)
    wrong = [f"this host's is {ahead:+.0f} s off"] if abs(ahead) > look.SKEW_S else []
    wrong += [f"{node.name}'s is {node.skew_s:+.0f} s off" for node in look.skewed(living)]
    if wrong:
        return CheckView("clock", False, f"against the ledger's clock, {'; '.join(wrong)}", "Set the hosts' clocks by NTP.")
    return CheckView("clock", True, "agrees with the ledger's")


def _versions(living: list[Node]) -> CheckView:
    other = look.strangers(living)
    if other:
        named = ", ".join(f"{node.name} ({node.code_version})" for node in other)
        return CheckView(
            "versions", False, f"of another version than {CODE_VERSION}: {named}", "Restart them with the version that is installed here."
        )
    return CheckView("versions", True, f"all {len(living)} processes run {CODE_VERSION}" if living else CODE_VERSION)


def _redis(runtime: Runtime) -> CheckView:
    url = runtime.settings.redis_url
    if look.without_redis(runtime):
        return CheckView("redis", True, "none given: no answer cache, and every process keeps limits of its own")
    if not url:
        return CheckView("redis", True, "none given: `dujiang up` starts its own server")
    client = broker.connect(url)
    try:
        with broker.typed():
            client.ping()
    except Unavailable as error:
        return CheckView("redis", False, error.detail, error.hint)
    finally:
        client.close()
    return CheckView("redis", True, str(mask("redis_url", url)))


def _broker(runtime: Runtime) -> CheckView:
    url = runtime.settings.broker_url
    if not url and not runtime.settings.redis_url:
        return CheckView("broker", True, "Redis, when it runs")
    try:
        runtime.broker.ping()
    except PipelineError as error:
        return CheckView("broker", False, error.detail, error.hint)
    return CheckView("broker", True, f"{broker.kind(runtime.settings)} {mask('broker_url', url)}".strip())


def _store(runtime: Runtime) -> CheckView:
    shown = str(mask("store_url", runtime.settings.store_url))
    for name, detail in look.store(runtime):
        return CheckView(name, False, detail, "Start it, or correct DUJIANG_STORE_URL.")
    return CheckView("store", True, shown)


def _embedder(runtime: Runtime) -> CheckView:
    try:
        profile = runtime.profile
    except PipelineError as error:
        return CheckView("embedder", False, error.detail, error.hint)
    return CheckView("embedder", True, f"{profile.name}, revision {profile.revision}")


def _queues(runtime: Runtime, living: list[Node]) -> CheckView:
    if not living and not runfile.alive(runfile.read(runtime.settings.home)):
        return CheckView("queues", True, "nothing is running")
    consumers = look.carrier(runtime).consumers
    if consumers is None:
        return CheckView("queues", False, "the broker does not say who listens", "See the broker above.")
    silent = [name for name, number in consumers.items() if not number]
    if silent:
        return CheckView("queues", False, f"nobody consumes {', '.join(silent)}", "Start a worker for them: dujiang worker --queues …")
    return CheckView("queues", True, f"all {len(consumers)} have a consumer")


def _sweep(runtime: Runtime, living: list[Node]) -> CheckView:
    age = look.sweep_age(living)
    if not any(node.role == "worker" for node in living) or (age is not None and age <= look.SWEPT_S):
        return CheckView("sweep", True, "nothing is running" if age is None else f"{age:.0f} s ago")
    return CheckView("sweep", False, "workers run, but nobody feeds and sweeps", "Start `dujiang beat`, or the system with `dujiang up`.")
