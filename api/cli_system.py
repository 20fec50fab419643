"""`dujiang audit`, `doctor`, `status`, `config`."""

from __future__ import annotations

import sys
import time
from collections.abc import Sequence
from typing import TYPE_CHECKING

import click

from api.terminal import clean, collections_option, dry_run_option, json_option, print_json, system, table

if TYPE_CHECKING:
    from api.system import System
    from workers.views import StatusView

WATCH_S = 2.0


@click.command(epilog="Example: dujiang audit -c handbook --json")
@collections_option
@click.option("--deep", is_flag=True, help="Open every kept output, too.")
@click.option("--repair", "mend", is_flag=True, help="Mend what differs; workers do the rest.")
@dry_run_option
@json_option
def audit(collections: Sequence[str], deep: bool, mend: bool, dry_run: bool, as_json: bool) -> None:
    """What the stores really hold, and where ledger, store and artifacts differ (exit code 1 when they do).

    Equal digests mean equal indexes.
    """
    with system() as opened:
        if mend:
            _mended(opened, collections, deep, dry_run, as_json)
            return
        view = opened.audit(collections, deep=deep)
    if as_json:
        print_json(view)
    else:
        head = ("collection", "documents", "chunks", "vectors", "digest")
        table(head, [(v.name, v.documents, v.chunks, v.vectors, v.digest) for v in view.collections])
        for item in view.collections:
            for difference in item.differences:
                click.echo(f"{click.style('differs', fg='red')}: {item.name}: {clean(difference)}")
    if not view.ok:
        click.get_current_context().exit(1)


def _mended(opened: System, collections: Sequence[str], deep: bool, dry_run: bool, as_json: bool) -> None:
    views = [opened.repair(name, deep=deep, dry_run=dry_run) for name in (dict.fromkeys(collections) or [""])]
    if as_json:
        print_json(views[0] if len(views) == 1 else {"data": views})
        return
    would = "would be " if dry_run else ""
    for view in views:
        click.echo(f"{view.differences} differences: {view.begun} documents {would}written again, {view.removed} {would}removed from the store")
        click.echo(f"{view.orphans} packs that nobody named{' would go' if dry_run else ' went'}")
        for run in view.runs:
            click.echo(f"started {run}: dujiang runs show {run}")
        for difference in view.unmended:
            click.echo(f"{click.style('left', fg='red')}: {clean(difference)}")
    if any(view.unmended for view in views):
        click.get_current_context().exit(1)


@click.command(epilog="Example: dujiang doctor")
@json_option
def doctor(as_json: bool) -> None:
    """Look for what is missing or wrong, and say the cure. Exit code 1 when something is."""
    with system() as opened:
        checks = opened.doctor()
    ok = all(check.ok for check in checks)
    if as_json:
        print_json({"ok": ok, "checks": checks})
    else:
        for check in checks:
            mark = click.style("ok  ", fg="green") if check.ok else click.style("FAIL", fg="red")
            click.echo(f"{mark}  {check.name}: {clean(check.detail)}")
            if not check.ok and check.hint:
                click.echo(f"      → {clean(check.hint)}")
    if not ok:
        click.get_current_context().exit(1)


@click.command(epilog="Example: dujiang status --watch")
@click.option("--watch", is_flag=True, help="Again and again until interrupted.")
@click.option("--every", "every_s", type=click.FloatRange(0.1, 3600.0), default=WATCH_S, show_default=True, help="Seconds between two looks.")
@json_option
def status(watch: bool, every_s: float, as_json: bool) -> None:
    """Processes, stages, queues and counts. With --watch --json a JSON line each time."""
    with system() as opened:
        while True:
            if not watch:
                _show(opened.status(), opened.where, as_json)
                return
            _again(opened, as_json)
            time.sleep(every_s)


def _again(opened: System, as_json: bool) -> None:
    """One look of many: a system that is away for a moment is no reason to stop looking."""
    from pipeline.errors import Unavailable

    try:
        view = opened.status()
    except Unavailable as error:
        click.echo(f"{click.style('away', fg='yellow')}: {clean(error.detail)}", err=as_json)
        return
    if not as_json:
        click.clear()
    _show(view, opened.where, as_json)
    sys.stdout.flush()


def _show(view: StatusView, where: str, as_json: bool) -> None:
    if as_json:
        print_json(view)
    else:
        _status(view, where)


def _status(view: StatusView, where: str) -> None:
    state = click.style("up", fg="green") if view.up else click.style("down", fg="yellow")
    click.echo(f"{state}  {where}{f'  redis {view.redis_url}' if view.redis_url else ''}")
    for part in view.degraded:
        click.echo(f"{click.style('degraded', fg='yellow')}: {clean(part)}")
    _stages(view)
    if view.processes:
        click.echo()
        table(("process", "role", "pid", "MB", "queues"), [(p.name, p.role, p.pid, p.rss_mb, p.queues) for p in view.processes])
    if view.queues:
        click.echo()
        head = ("queue", "ready", "queued", "leased", "in broker", "oldest s", "consumers")
        table(head, [(name, q.ready, q.queued, q.leased, q.depth, q.oldest_s, q.consumers) for name, q in view.queues.items()])
    if view.cache is not None and view.cache.hits + view.cache.misses:
        asked = view.cache.hits + view.cache.misses
        told = f"{view.cache.hits} of {asked} questions hit, {view.cache.waits} of them after a wait; {view.cache.entries} entries kept"
        click.echo(f"\nanswer cache: {told}")
    if view.documents:
        click.echo()
        table(("documents", "count"), list(view.documents.items()))


def _stages(view: StatusView) -> None:
    """Where documents are, how fast they move, and how many are before a new one."""
    if view.stages:
        click.echo()
        head = ("stage", "waiting", "working", "per minute", "oldest s")
        table(head, [(name, s.waiting, s.working, s.per_minute, s.oldest_s) for name, s in view.stages.items()])
    if any(view.ahead.values()):
        click.echo("ahead of a new document: " + ", ".join(f"{number} ({lane})" for lane, number in view.ahead.items()))
    elsewhere = [node for node in view.nodes if not any(node.name.endswith(f"-{process.pid}") for process in view.processes)]
    if elsewhere:
        click.echo()
        rows = [(node.name, node.role, node.code_version, node.progress_s, node.queues) for node in elsewhere]
        table(("node", "role", "version", "progress s", "queues"), rows)


@click.group(epilog="Example: dujiang config show")
def config() -> None:
    """Every setting and where it came from."""


@config.command("show", epilog="Example: dujiang config show --json")
@json_option
def show(as_json: bool) -> None:
    """Value and origin of each setting; secrets are masked."""
    from pipeline.settings import load

    loaded = load()
    values = loaded.settings.masked()
    if as_json:
        print_json({name: {"value": value, "origin": loaded.origin.get(name, "default")} for name, value in values.items()})
        return
    table(("setting", "value", "from"), [(name, str(value), loaded.origin.get(name, "default")) for name, value in values.items()])
