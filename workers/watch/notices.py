"""What does not work as it should, said once when it begins and once when it is over."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable

from pipeline.errors import PipelineError
from workers.runtime import Runtime
from workers.watch.status import status

EVERY_S = 10.0


class Notices:
    """Safe for threads. Looks from a thread of its own, since a service that is away may take a minute to say so.

    Args:
        say: told one line at a time.
    """

    def __init__(self, say: Callable[[str], None]) -> None:
        self._say = say
        self._lock = threading.Lock()
        self._known: set[str] = set()
        self._ended = threading.Event()

    def begin(self, runtime: Runtime) -> None:
        threading.Thread(target=self._watch, args=(runtime,), name="notices", daemon=True).start()

    def end(self) -> None:
        self._ended.set()

    def hear(self, lines: Iterable[str], *, all_there_is: bool = True) -> None:
        """Lines of the form ``part: what is wrong``; a part is spoken of again only after it was well, however its words change.

        Args:
            all_there_is: parts that are not among them are well.
        """
        with self._lock:
            found = {line.partition(": ")[0]: line for line in lines}
            new = [line for part, line in found.items() if part not in self._known]
            well = sorted(self._known - found.keys()) if all_there_is else []
            self._known = (self._known | found.keys()) - set(well)
        for line in new:
            self._say(f"degraded: {line}")
        for part in well:
            self._say(f"well again: {part}")

    def _watch(self, runtime: Runtime) -> None:
        while not self._ended.wait(EVERY_S):
            try:
                self.hear(status(runtime).degraded)
            except PipelineError as error:
                self.hear([f"{error.code}: {error.detail}"], all_there_is=False)
