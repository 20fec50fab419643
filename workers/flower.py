"""Flower beside the system: a viewer on loopback, stage names as task names, batches told by run and number of documents."""

from __future__ import annotations

import sys
from collections import OrderedDict
from collections.abc import Callable
from typing import Any, Protocol

from pipeline.errors import BadRequest, Unavailable
from pipeline.settings import Settings, load
from workers import app as application
from workers import tasks
from workers.ledger import history
from workers.ledger.engine import Database
from workers.logs import configure

MAX_TASKS = 10_000
"""About 6 kB each in Flower's memory."""
COLUMNS = "name,args,state,received,runtime,worker,uuid"


class Task(Protocol):
    """A task as Flower shows it; what it hands over is a copy."""

    uuid: str
    args: str | None


def formatter(db: Database) -> Callable[[Task], Task]:
    """What Flower calls for every line: the arguments become ``batch 15, run_3, 64 documents``, which `dujiang batches show 15` goes on from.

    It must be a plain function. What was once found is kept, since a batch never changes what it holds.
    """
    known: OrderedDict[int, str] = OrderedDict()

    def told(batch: int) -> str:
        if batch not in known:
            known[batch] = history.label(db, batch)
            while len(known) > MAX_TASKS:
                known.popitem(last=False)
        return known[batch]

    def format_task(task: Task) -> Task:
        stage, _, rest = task.uuid.partition("-")
        batch, _, token = rest.partition("-")
        if stage and batch.isdigit() and token.isdigit():
            try:
                task.args = told(int(batch)) + ("" if token == "1" else f", issue {token}")
            except Unavailable:
                task.args = f"batch {batch}"
        return task

    return format_task


def configured(settings: Settings, db: Database) -> list[str]:
    """Set what Flower takes as objects or must not show among processes; gives the rest as its command line. Raises BadRequest."""
    from flower.options import default_options  # pyright: ignore[reportMissingTypeStubs]

    options: Any = default_options
    options.format_task = formatter(db)
    if settings.flower_auth:
        user, _, password = settings.flower_auth.partition(":")
        if not user or not password:
            raise BadRequest("DUJIANG_FLOWER_AUTH is not user:password", hint="Set it to user:password, or leave it empty.", code="bad_setting")
        options.basic_auth = [settings.flower_auth]
    # Its /metrics asks for no password, whatever is set: so it is on loopback, always.
    return [
        "flower",
        "--address=127.0.0.1",
        f"--port={settings.port + 1}",
        f"--max_tasks={MAX_TASKS}",
        "--purge_offline_workers=60",
        "--inspect_timeout=2000",
        "--read_only=true",
        f"--tasks_columns={COLUMNS}",
    ]


def main() -> None:
    settings = load().settings
    configure(settings)
    app = application.create_app(settings)
    tasks.register(app, settings, "flower")
    app.start(configured(settings, Database(settings.ledger_url)))


if __name__ == "__main__":
    sys.exit(main())
