"""Flower beside the system: a viewer on loopback, stage names as task names, batch ids as arguments."""

from __future__ import annotations

import sys

from pipeline.settings import load
from workers import app as application
from workers import tasks
from workers.logs import configure

MAX_TASKS = 10_000
"""About 6 kB each in Flower's memory."""


def main() -> None:
    settings = load().settings
    configure(settings)
    app = application.create_app(settings)
    tasks.register(app, settings, "flower")
    port = settings.port + 1
    options = ["flower", "--address=127.0.0.1", f"--port={port}", f"--max_tasks={MAX_TASKS}", "--purge_offline_workers=60", "--inspect_timeout=2000"]
    app.start(options)


if __name__ == "__main__":
    sys.exit(main())
