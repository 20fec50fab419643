"""What connectors are given: tokens made once for all workers, limits shared by all who use the same credentials."""

from __future__ import annotations

import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from pipeline.errors import Cancelled, RateLimited, Unavailable
from tests.servers.redis import RedisServer
from tests.system import ROOT, settings_for, until
from workers import sealing
from workers.dispatch import Platform, open_platform
from workers.limits import rules
from workers.surroundings import Around, Notebook, Values, account

MAKER = """
import sys, time
from pathlib import Path
from pipeline.settings import load
from workers.surroundings import Values
home, url, out = sys.argv[1:]
values = Values(load({"home": home, "redis_url": url}, environ={}, cwd=Path(home)).settings)
def make():
    with open(out, "a") as file:
        file.write("x")
    time.sleep(0.3)
    return "token-of-" + str(time.time()), 600.0
print(values.get("t", make, ""))
"""


@pytest.fixture
def platform(tmp_path: Path, redis_url: str) -> Iterator[Platform]:
    with open_platform(settings_for(tmp_path, redis_url=redis_url)) as opened:
        yield opened


def around(platform: Platform, account: str = "a", check: Callable[[], None] = lambda: None) -> Around:
    """As another process would have it: with values of its own."""
    return Around(platform.runtime.limits, Values(platform.settings), "shelf", account, check, Notebook(platform.db, "source"))


class Maker:
    """Makes tokens and counts them."""

    def __init__(self, life_s: float = 600.0) -> None:
        self.made, self.life_s = 0, life_s

    def __call__(self) -> tuple[str, float]:
        self.made += 1
        return f"token-{self.made}", self.life_s


def test_processes_that_need_a_token_at_once_make_one(tmp_path: Path, redis_url: str) -> None:
    arguments = [sys.executable, "-c", MAKER, str(tmp_path), redis_url, str(tmp_path / "made")]
    processes = [subprocess.Popen(arguments, cwd=ROOT, stdout=subprocess.PIPE, text=True) for _ in range(3)]
    tokens = {process.communicate(timeout=60)[0].strip() for process in processes}
    assert len(tokens) == 1 and (tmp_path / "made").read_text() == "x"


def test_threads_that_need_a_token_at_once_make_one(platform: Platform) -> None:
    make, one = Maker(), around(platform)
    found: list[str] = []
    threads = [threading.Thread(target=lambda: found.append(one.shared("t", make))) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(20.0)
    assert found == ["token-1"] * 8 and make.made == 1


def test_a_token_that_was_refused_is_made_anew_once(platform: Platform) -> None:
    make = Maker()
    one, other = around(platform), around(platform)
    assert one.shared("t", make) == other.shared("t", make) == "token-1"
    assert one.shared("t", make, stale="token-1") == "token-2"
    assert other.shared("t", make, stale="token-1") == "token-2", "the other takes what the first one made"
    assert other.shared("t", make) == "token-2" and make.made == 2


def test_a_token_ends_with_its_life(platform: Platform) -> None:
    make = Maker(life_s=0.5)
    one, other = around(platform), around(platform)
    assert one.shared("t", make) == "token-1"
    until(lambda: other.shared("t", make) == "token-2", 5.0, "it is made anew")
    assert one.shared("t", make) in {"token-2", "token-3"}


def test_tokens_in_redis_are_sealed_and_expire(platform: Platform, redis_server: RedisServer, tmp_path: Path) -> None:
    values = Values(settings_for(tmp_path / "other", redis_url=redis_server.url))
    assert values.get("t", lambda: ("very-secret", 600.0), "") == "very-secret"
    with redis_server.client() as client:
        keys = list(client.scan_iter("*"))
        assert keys and all(client.ttl(key) > 0 for key in keys)
        assert not any("very-secret" in str(client.get(key)) for key in keys)


def test_another_host_with_another_key_makes_a_token_of_its_own(tmp_path: Path, redis_url: str) -> None:
    one, other = (Values(settings_for(tmp_path / name, redis_url=redis_url)) for name in ("one", "other"))
    assert one.get("t", lambda: ("first", 600.0), "") == "first"
    assert other.get("t", lambda: ("second", 600.0), "") == "second"


def test_what_making_a_token_raises_is_raised_and_nobody_waits_for_it(platform: Platform) -> None:
    def refused() -> tuple[str, float]:
        raise Unavailable("the service is away", code="unreachable")

    with pytest.raises(Unavailable, match="the service is away"):
        around(platform).shared("t", refused)
    assert around(platform).shared("t", Maker()) == "token-1"


def test_without_redis_a_process_keeps_its_own_token(tmp_path: Path, redis_server: RedisServer) -> None:
    values, make = Values(settings_for(tmp_path, redis_url=redis_server.url)), Maker()
    redis_server.kill()
    assert values.get("t", make, "") == values.get("t", make, "") == "token-1"
    assert Values(settings_for(tmp_path)).get("t", make, "") == "token-2"


# ---------------------------------------------------------------- limits


def test_sources_with_the_same_credentials_share_their_limits(platform: Platform) -> None:
    settings = platform.settings
    one, same, other = (
        account(settings, name, sealing.seal(settings, name, {"token": token})) for name, token in (("a", "x"), ("b", "x"), ("c", "y"))
    )
    assert one == same != other and account(settings, "d", "") == "d"
    for _ in range(2):
        with around(platform, one).acquire("api", rate=0.01, burst=2):
            pass
    with pytest.raises(RateLimited), around(platform, same).acquire("api", rate=0.01, burst=2):
        raise AssertionError
    with around(platform, same).acquire("another route", rate=0.01, burst=2), around(platform, other).acquire("api", rate=0.01, burst=2):
        pass


def test_a_route_that_was_blocked_is_blocked_for_all_workers(platform: Platform) -> None:
    around(platform).blocked("api", 60.0)
    with pytest.raises(RateLimited) as told, around(platform).acquire("api", rate=100.0, burst=10):
        raise AssertionError
    assert told.value.after is not None and 50.0 < told.value.after <= 60.0


def test_a_source_that_is_away_is_left_alone(platform: Platform) -> None:
    for _ in range(rules.FAILURES):
        with pytest.raises(Unavailable, match="it is away"), around(platform).acquire("api", rate=100.0, burst=10):
            raise Unavailable("it is away", dependency=True)
    assert platform.runtime.limits.figures() == {"source.shelf": 1.0}
    assert 'dujiang_breaker_open{dependency="source.shelf"} 1' in platform.metrics()


def test_no_more_requests_of_a_source_than_its_slots(platform: Platform) -> None:
    def stopped() -> None:
        raise Cancelled("stopped")

    with (
        around(platform).acquire("files", rate=100.0, burst=10, slots=1),
        pytest.raises(Cancelled),
        around(platform, check=stopped).acquire("files", rate=100.0, burst=10, slots=1),
    ):
        raise AssertionError
    with around(platform, check=stopped).acquire("files", rate=100.0, burst=10, slots=1):
        pass


def test_waiting_for_a_source_ends_when_the_run_is_stopped(platform: Platform) -> None:
    def stopped() -> None:
        raise Cancelled("stopped")

    with pytest.raises(Cancelled):
        around(platform, check=stopped).sleep(60.0)
