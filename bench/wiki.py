"""A large Feishu wiki synced under the vendor's limits, with failures among its answers: how near the quota, how many requests, what changes cost.

python -m bench.wiki [--pages 5000] [--speed 1] [--limited 0.01] [--errors 0.005] [--changed 0.01] [--seed 1]

The wiki is simulated, its limits are the vendor's and kept by the simulator; `--speed 4` has both sides live four times as fast. After the
first sync nothing changes before the second, and a share of the pages before the third. CPU and memory are those of the system's processes
alone. Exits with 1 when what is held is not what the wiki holds.
"""

from __future__ import annotations

import argparse
import random
import sys
import tempfile
import threading
import time
from collections import Counter
from dataclasses import dataclass
from pathlib import Path

from bench.cost import tree_cpu, tree_memory_mb
from tests.simulators.feishu import APP_ID, Feishu
from tests.simulators.feishu_gate import LIMITS, limited, refused
from tests.simulators.feishu_large import Grown, grow, stir
from tests.simulators.served import Answer, Call, Clock
from tests.system import System
from workers.views import RunView

NAME = "wiki"
LOOK_S = 0.5
MOST_S = 4 * 3600.0


class Shifted(Clock):
    """The real time, or one before it."""

    def __init__(self) -> None:
        super().__init__(real=True)
        self.shift_s = 0.0

    def now(self) -> float:
        return time.time() + self.shift_s


class Flaky(Feishu):
    """Answers a share of the calls with a limit that was not reached, or with an error of its own."""

    def __init__(self, seed: int, limited: float, errors: float) -> None:
        self.age = Shifted()
        super().__init__(self.age)
        self._chance, self._limited, self._errors = random.Random(seed), limited, errors
        self.struck: Counter[str] = Counter()

    def answer(self, call: Call) -> Answer:
        drawn = self._chance.random()
        if "tenant_access_token" not in call.path and drawn < self._limited + self._errors:
            route = next((route.name for route in self.routes if route.method == call.method and route.path.fullmatch(call.path)), "")
            if route:
                self.meter.note(route)
            name = "429" if drawn < self._limited else "500"
            self.struck[name] += 1
            return limited(1, 429) if name == "429" else refused(1663, "internal error", 500)
        found = super().answer(call)
        if found.status in {400, 429} and b"99991400" in found.body:
            self.struck["beyond the limit"] += 1
        return found


@dataclass(frozen=True, slots=True)
class Figures:
    """What one sync came to."""

    run: RunView
    seconds: float
    cpu_s: float
    memory_mb: float
    calls: Counter[str]
    struck: Counter[str]


def main() -> None:
    given = arguments()
    with tempfile.TemporaryDirectory(prefix="dujiang-wiki-") as folder, Flaky(given.seed, given.limited, given.errors) as feishu:
        feishu.meter.enforced = True
        feishu.meter.limits = {route: [(round(most * given.speed), window_s) for most, window_s in limits] for route, limits in LIMITS.items()}
        # what was edited a moment ago is looked at once more, and a wiki's pages are older than that
        feishu.age.shift_s = -30 * 86_400.0
        grown = grow(feishu.library, given.pages, seed=given.seed)
        feishu.age.shift_s = 0.0
        with System(Path(folder) / "home", embedder="hashed", worker_processes=0) as system:
            options = {"base_url": feishu.url, "app_id": APP_ID, "app_secret": feishu.tokens.app_secret}
            options |= {"wiki_space": "all", "rate_percent": str(round(100 * given.speed))}
            system.platform.sources.create(NAME, "feishu", NAME, options=options)
            found = {"first": measured(system, feishu), "unchanged": measured(system, feishu)}
            changes = stir(feishu.library, grown, seed=given.seed + 1, share=given.changed)
            found[f"{given.changed:.0%} changed"] = measured(system, feishu)
            wrong = differences(system, grown)
        table(found, given.speed)
        print(f"\nchanges before the third sync: {changes}")
        print("held is what the wiki holds" if not wrong else f"NOT THE SAME: {wrong}")
    sys.exit(1 if wrong else 0)


def measured(system: System, feishu: Flaky) -> Figures:
    """One sync, from its order to its end."""
    before, struck = len(feishu.calls), Counter(feishu.struck)
    cpu, began, highest = tree_cpu(system.pid), time.monotonic(), 0.0
    run = system.platform.sources.sync(NAME)
    while not (view := system.platform.run(run.run_id)).finished:
        if time.monotonic() - began > MOST_S or view.status == "paused":
            raise SystemExit(f"the sync does not end: {view}")
        highest = max(highest, tree_memory_mb(system.pid))
        threading.Event().wait(LOOK_S)
    seconds = time.monotonic() - began
    calls: Counter[str] = Counter()
    for call in feishu.calls[before:]:
        calls[next((route.name for route in feishu.routes if route.method == call.method and route.path.fullmatch(call.path)), "other")] += 1
    return Figures(view, seconds, tree_cpu(system.pid) - cpu, highest, calls, feishu.struck - struck)


def differences(system: System, grown: Grown) -> str:
    """What is missing, too much, or does not hold its page's fact; empty when all is well."""
    there = {token for _, _, token in grown.facts}
    views, after = {}, ""
    while True:
        page = system.platform.documents(NAME, limit=1000, after=after)
        views |= {view.document.rpartition(":")[2]: view for view in page.data}
        if not page.has_more or not page.last_id:
            break
        after = page.last_id
    if set(views) != there:
        return f"{len(there - set(views))} missing, {len(set(views) - there)} too many"
    for _, fact, token in grown.facts:
        if fact not in system.platform.document_text(NAME, views[token].document_id):
            return f"{views[token].document} does not hold its fact"
    held = system.audit(NAME)
    return "" if held.documents == len(there) else f"the store holds {held.documents} documents of {len(there)}"


def table(found: dict[str, Figures], speed: float) -> None:
    print("| sync | wall s | CPU s | memory, MB | requests | a document | indexed | unchanged | deleted | failed | 429 | 500 | beyond the limit |")
    print("|---|---|---|---|---|---|---|---|---|---|---|---|---|")
    for name, one in found.items():
        run, total = one.run, one.calls.total()
        counts = f"{total} | {total / max(1, run.discovered):.3f} | {run.indexed} | {run.unchanged} | {run.deleted} | {run.failed}"
        struck = " | ".join(str(one.struck[kind]) for kind in ("429", "500", "beyond the limit"))
        print(f"| {name} | {one.seconds:.1f} | {one.cpu_s:.1f} | {one.memory_mb:.0f} | {counts} | {struck} |")
    print("\nThe API's own limit: the time that the calls of the busiest route must take at least.\n")
    print("| sync | busiest route | calls | least s | wall / least |\n|---|---|---|---|---|")
    for name, one in found.items():
        least = {route: least_s(route, number, speed) for route, number in one.calls.items()}
        route = max(least, key=lambda each: least[each])
        print(f"| {name} | {route} | {one.calls[route]} | {least[route]:.1f} | {one.seconds / max(least[route], 0.001):.2f} |")
    print(f"\nrequests of the first sync: {dict(found['first'].calls.most_common())}")


def least_s(route: str, calls: int, speed: float) -> float:
    """Seconds that so many calls take at the limit, the first window's being free."""
    return max((max(0, calls - most) / (most / window_s) / speed for most, window_s in LIMITS.get(route, ()) if window_s < 3600), default=0.0)


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--pages", type=int, default=5000)
    parser.add_argument("--speed", type=float, default=1.0, help="how many times the vendor's limits both sides live by")
    parser.add_argument("--limited", type=float, default=0.01, help="share of the calls that are answered with 429")
    parser.add_argument("--errors", type=float, default=0.005, help="share of the calls that are answered with 500")
    parser.add_argument("--changed", type=float, default=0.01, help="share of the pages that change before the third sync")
    parser.add_argument("--seed", type=int, default=1)
    return parser.parse_args()


if __name__ == "__main__":
    main()
