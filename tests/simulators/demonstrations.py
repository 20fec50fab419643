"""What `make demo SOURCE=` shows of each kind of source: a simulator with a small library, two questions, and what changes in it meanwhile.

python -m tests.simulators.demonstrations yuque      serves it until its input ends; a line "change" changes it
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from importlib import import_module
from types import MappingProxyType
from typing import Any

import orjson

from tests.simulators.served import Simulator


@dataclass(frozen=True, slots=True)
class Demonstration:
    """One kind of source."""

    about: str
    make: Callable[[], Any]
    """The simulator, filled, by the real clock; not started yet."""
    options: Callable[[Any], Mapping[str, str]]
    """What the source is told, secrets left out."""
    secrets: Callable[[Any], Mapping[str, tuple[str, str]]]
    """Option → environment variable, value."""
    questions: tuple[str, str]
    change: Callable[[Any], str]
    """Changes one page and deletes one; says which."""
    again: str
    """A question whose answer is another one then."""


@dataclass(frozen=True, slots=True)
class Told:
    """What a demonstration's server says when it is ready."""

    url: str
    options: Mapping[str, str] = field(default_factory=dict[str, str])
    secrets: Mapping[str, tuple[str, str]] = field(default_factory=dict[str, tuple[str, str]])


DEMONSTRATIONS: Mapping[str, str] = MappingProxyType(
    {
        "feishu": "tests.simulators.feishu_demonstration:DEMONSTRATION",
        "web": "tests.simulators.web_site:DEMONSTRATION",
        "yuque": "tests.simulators.yuque_library:DEMONSTRATION",
    }
)
"""Kind → where its demonstration stands."""


def demonstration(kind: str) -> Demonstration:
    """Ends the program, naming those there are, for a kind without one."""
    if kind not in DEMONSTRATIONS:
        raise SystemExit(f"There is no demonstration of {kind!r}; there are: {', '.join(DEMONSTRATIONS)}.")
    module, _, name = DEMONSTRATIONS[kind].partition(":")
    found: Demonstration = getattr(import_module(module), name)
    return found


def main() -> None:
    shown = demonstration(sys.argv[1])
    simulator: Simulator = shown.make()
    with simulator:
        told = {"url": simulator.url, "options": dict(shown.options(simulator)), "secrets": dict(shown.secrets(simulator))}
        print(orjson.dumps(told).decode(), flush=True)
        for line in sys.stdin:
            if line.strip() == "change":
                print(orjson.dumps(shown.change(simulator)).decode(), flush=True)


if __name__ == "__main__":
    main()
