"""A source under fire for days of its own time: whatever its API answers and whoever is killed, in the end we hold what it holds."""

from __future__ import annotations

import random
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.chaos.conftest import seed
from tests.simulators.served import Answer, Call
from tests.simulators.yuque import Yuque
from tests.soaking import Crew, Shared, bench_on, words
from tests.sourced import Bench

DAY_S = 86_400.0
PER_HOUR = 7200
"""Requests an hour that the source is told it may make: two a second, 120 at once."""
ANSWER_S = 0.4
"""How long the connector waits for an answer, in real time."""


class Fiery(Yuque):
    """A Yuque whose answers are spoilt by chance while `share` is above 0."""

    def __init__(self, clock: Shared, chance: random.Random) -> None:
        super().__init__(clock)
        self.chance, self.share, self.slow = chance, 0.0, 1
        self.struck: dict[str, int] = {}

    def answer(self, call: Call) -> Answer:
        good = super().answer(call)
        if good.status != 200 or self.chance.random() >= self.share:
            return good
        kinds = {
            "limited": Answer.json({"status": 429}, 429, {"retry-after": str(self.chance.randint(1, 40))}),
            "silent limit": Answer.json({"status": 429}, 429),
            "quota": Answer.json({"status": 429}, 429, {"retry-after": "5000"}),
            "error": Answer(500, b"oops"),
            "away": Answer(503, b"", {"retry-after": "3"}),
            "truncated": Answer(200, good.body[: len(good.body) // 2]),
            "empty": Answer(200, b""),
            "page": Answer(200, b"<html>busy</html>", {"content-type": "text/html"}),
            "broken off": Answer(200, good.body, cut_at=len(good.body) // 3),
        }
        names = [*kinds, "slow"] if self.slow else [*kinds]
        name = self.chance.choice(names)
        self.struck[name] = self.struck.get(name, 0) + 1
        if name == "slow":
            self.slow -= 1
            return Answer(200, good.body, delay_s=2 * ANSWER_S)
        return kinds[name]


class World:
    """What the source is made to hold, and by whom it is followed."""

    def __init__(self, home: Path, number: int, chance: random.Random) -> None:
        self.home, self.chance = home, chance
        self.clock = Shared(time.time())
        self.yuque = Fiery(self.clock, chance)
        self.tokens = [self.yuque.token]
        self.model: dict[int, str] = {}
        self.next = number + 1
        for book in (1, 2, 3):
            self.yuque.book(book, f"Book {book}")
        for index in range(1, number + 1):
            self._write(index, 1 if index <= number * 3 // 4 else 2)
        self.bench: Bench = bench_on(home, self.clock)
        self.crew = Crew(home, self.clock, answer_s=ANSWER_S)

    def _write(self, number: int, book: int) -> None:
        self.clock.advance(1)
        self.model[number] = words(number, self.chance.randrange(10**6))
        self.yuque.write(book, number, f"Page {number}", self.model[number])

    def _book(self, number: int) -> int:
        return next(book.id for book in self.yuque.books.values() if number in book.docs)

    def live(self, number: int) -> list[int]:
        return self.chance.sample(sorted(self.model), min(number, len(self.model)))

    def live_one(self, what: str) -> None:
        """Something happens at the source."""
        with self.yuque.lock:
            (number,) = self.live(1)
            book = self._book(number)
            match what:
                case "edit":
                    self._write(number, book)
                case "move":
                    moved = self.yuque.books[book].docs.pop(number)
                    moved.slug, moved.changed = f"moved-{number}", self.clock.now()
                    self.yuque.books[book % 3 + 1].docs[number] = moved
                case "delete":
                    self.clock.advance(1)
                    self.yuque.delete(book, number)
                    del self.model[number]
                case "restore":
                    gone = [doc for book in self.yuque.books.values() for doc in book.docs.values() if doc.deleted]
                    if gone:
                        back = self.chance.choice(gone)
                        self._write(back.id, self._book(back.id))
                case _:
                    self._write(self.next, book)
                    self.next += 1

    def happen(self, number: int = 1) -> None:
        for _ in range(number):
            self.live_one(self.chance.choice(("edit", "edit", "move", "delete", "restore", "new")))

    def sync(self, *, first: bool = False, kills: int = 0, changes: int = 0, lose_token: bool = False) -> None:
        """A run, with so much happening at requests that chance chooses."""
        at, within = len(self.yuque.calls), len(self.model) if first else 10
        moments = iter(self.chance.sample(range(at + 2, at + within), kills + changes + lose_token))
        self.yuque.after |= {next(moments): self.crew.kill for _ in range(kills)}
        self.yuque.after |= {next(moments): self.happen for _ in range(changes)}
        self.yuque.after |= {next(moments): self.lose_token for _ in range(lose_token)}
        run = self.bench.sources.sync("wiki")
        self.crew.finish(run.run_id, self.give_token)
        if self.bench.sources.show("wiki").status == "stopped":
            # The listing was refused, and nothing else was under way: the run is over.
            self.give_token()
        self.yuque.after.clear()

    def lose_token(self) -> None:
        self.yuque.token = f"token-{len(self.tokens)}-{self.chance.randrange(10**9)}"
        self.tokens.append(self.yuque.token)

    def give_token(self) -> None:
        self.bench.sources.update("wiki", options={"token": self.yuque.token})

    def check(self) -> None:
        """Ledger, stores and source agree, to the letter."""
        views = self.bench.platform.documents("docs", limit=10_000).data
        held = {int(view.document.rpartition(":")[2]): view for view in views}
        assert len(held) == len(views) and sorted(held) == sorted(self.model)
        assert {view.status for view in views} == {"done"}
        for number, view in held.items():
            assert self.bench.platform.document_text("docs", view.document_id) == self.model[number]
            assert f"book-{self._book(number)}/" in view.url
        assert self.bench.audit() == len(self.model)


@pytest.fixture
def world(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[World]:
    number: int = request.param
    chosen = seed()
    print(f"DUJIANG_CHAOS_SEED={chosen}")
    made = World(tmp_path / "home", number, random.Random(chosen))
    with made.yuque:
        options = {"base_url": made.yuque.url, "token": made.yuque.token, "requests_per_hour": str(PER_HOUR)}
        made.bench.sources.create("wiki", "yuque", "docs", options=options)
        yield made
    made.bench.close()


def never_faster(world: World) -> None:
    """No stretch of time holds more requests than the bucket lets through in it."""
    times = [call.at for call in world.yuque.calls]
    rate, burst = PER_HOUR / 3600, PER_HOUR / 60
    level, last = 0.0, times[0]
    for at in times:
        level = max(0.0, level - (at - last) * rate) + 1.0
        last = at
        assert level <= burst + 1.0


def secret(world: World) -> None:
    for path in world.home.rglob("*"):
        if path.is_file():
            data = path.read_bytes()
            assert not [token for token in world.tokens if token.encode() in data], path


def soak(world: World, rounds: int) -> None:
    world.yuque.share = 0.06
    world.sync(first=True, kills=2, changes=3)
    for number in range(rounds):
        world.clock.advance(world.chance.uniform(0.05, 0.6) * DAY_S)
        world.happen(8)
        world.sync(kills=1, changes=3, lose_token=number == 0)
    world.yuque.share = 0.0
    world.clock.advance(1.1 * DAY_S)
    world.sync()
    world.check()
    asked = len(world.yuque.asked(r"/docs/\d+$"))
    world.sync()
    assert len(world.yuque.asked(r"/docs/\d+$")) == asked, "nothing is fetched that did not change"
    world.check()
    never_faster(world)
    secret(world)


@pytest.mark.parametrize("world", [150], indirect=True)
def test_a_source_is_held_as_it_is_whatever_its_api_answers_and_whoever_is_killed(world: World) -> None:
    soak(world, rounds=2)
    assert world.crew.kills >= 2 and len(world.tokens) == 2 and len(world.yuque.struck) >= 3


@pytest.mark.full
@pytest.mark.parametrize("world", [1000], indirect=True)
def test_a_large_source_is_held_as_it_is_after_many_days_of_faults(world: World) -> None:
    world.yuque.slow = 10
    soak(world, rounds=12)
    assert world.crew.kills >= 10 and set(world.yuque.struck) >= {"limited", "error", "truncated", "empty", "slow", "broken off"}
