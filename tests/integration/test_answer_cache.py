"""The answer cache on a real server: everything expires, one process computes for all, a dead one holds nobody up."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
import redis
from redis.backoff import NoBackoff
from redis.retry import Retry

from pipeline.answer import ask
from pipeline.cache import RedisCache
from pipeline.contracts import Answer, Question
from pipeline.errors import Unavailable
from pipeline.packs import cache_group
from tests.fakes_answer import Reader, target
from tests.servers.redis import RedisServer
from workers.caching import Tally

ROOT = Path(__file__).parents[2]
TRIP = "Lin Cen approved the trip to Basalt Bay by high-speed train."
ASKED = Question("Who approved the trip to Basalt Bay?", ("handbook",), k=3)
SAYS = "Lin Cen approved the trip [1]."

LEADER = """
import sys, redis
from pipeline.cache import RedisCache
with RedisCache(redis.Redis.from_url(sys.argv[1]), lock_s=float(sys.argv[2])).flight("k", wait_s=1) as leader:
    print(leader, flush=True)
    sys.stdin.read()
"""


@pytest.fixture
def client(redis_url: str) -> Iterator[redis.Redis]:
    with redis.Redis.from_url(redis_url) as client:
        yield client


@pytest.fixture
def cache(client: redis.Redis) -> RedisCache:
    return RedisCache(client)


def leader(url: str, lock_s: float) -> subprocess.Popen[str]:
    """Another process that holds the flight of "k" until its input closes."""
    process = subprocess.Popen([sys.executable, "-c", LEADER, url, str(lock_s)], cwd=ROOT, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    assert process.stdout is not None and process.stdout.readline() == "True\n"
    return process


def test_values_come_back_as_they_were_and_end_with_their_time(cache: RedisCache, client: redis.Redis) -> None:
    cache.put("a", b"\x00\xff", ttl_s=60)
    assert (cache.get("a"), cache.get("b")) == (b"\x00\xff", None)
    cache.put("short", b"x", ttl_s=0.001)
    deadline = time.monotonic() + 10
    while cache.get("short") is not None:
        assert time.monotonic() < deadline


def test_every_key_expires_the_groups_and_the_locks_included(cache: RedisCache, client: redis.Redis) -> None:
    with cache.flight("k", wait_s=1) as leads:
        assert leads
        cache.put("k", b"x", ttl_s=60, group="g")
        cache.put("l", b"x", ttl_s=5, group="g")
        kept = {key.decode(): client.pttl(key) for key in client.scan_iter()}
    assert set(kept) == {"dujiang.cache.k", "dujiang.cache.l", "dujiang.cache.group.g", "dujiang.cache.flight.k"}
    assert all(0 < left <= 60_000 for left in kept.values())
    assert kept["dujiang.cache.group.g"] > 50_000
    assert not client.exists("dujiang.cache.flight.k")


def test_a_group_is_purged_whole_and_alone_however_large(cache: RedisCache, client: redis.Redis) -> None:
    for number in range(1500):
        cache.put(f"k{number}", b"x", ttl_s=60, group="large")
    cache.put("other", b"x", ttl_s=60, group="small")
    assert cache.purge("large") == 1500
    assert cache.purge("large") == 0
    assert sorted(client.scan_iter()) == [b"dujiang.cache.group.small", b"dujiang.cache.other"]


def test_a_group_forgets_keys_that_have_expired(cache: RedisCache, client: redis.Redis) -> None:
    cache.put("gone", b"x", ttl_s=0.001, group="g")
    deadline = time.monotonic() + 10
    while client.exists("dujiang.cache.gone"):
        assert time.monotonic() < deadline
    cache.put("here", b"x", ttl_s=60, group="g")
    assert client.zrange("dujiang.cache.group.g", 0, -1) == [b"dujiang.cache.here"]


def test_two_prefixes_share_a_server_without_meeting(client: redis.Redis) -> None:
    one, two = RedisCache(client, "dujiang.one."), RedisCache(client, "dujiang.two.")
    one.put("k", b"1", ttl_s=60, group="g")
    two.put("k", b"2", ttl_s=60, group="g")
    assert one.purge("g") == 1
    assert (one.get("k"), two.get("k")) == (None, b"2")


def test_others_wait_for_the_process_that_computes(redis_url: str, cache: RedisCache) -> None:
    process = leader(redis_url, 10)
    threading.Timer(0.2, process.communicate).start()
    with cache.flight("k", wait_s=30) as leads:
        assert not leads
    with cache.flight("k", wait_s=30) as leads:
        assert leads
    process.wait(30)


def test_a_wait_ends_with_its_time_while_the_leader_goes_on(redis_url: str, cache: RedisCache) -> None:
    process = leader(redis_url, 0.8)
    with cache.flight("k", wait_s=1.2) as leads:
        assert not leads, "a living leader renews its lock"
    with cache.flight("k", wait_s=0) as leads:
        assert not leads
    process.communicate()


def test_the_death_of_a_leader_frees_those_who_wait(redis_url: str, cache: RedisCache) -> None:
    process = leader(redis_url, 0.5)
    os.kill(process.pid, signal.SIGKILL)
    process.wait(30)
    with cache.flight("k", wait_s=30) as leads:
        assert not leads
    with cache.flight("k", wait_s=30) as leads:
        assert leads


def test_a_frozen_leader_does_not_free_the_lock_of_the_next_one(client: redis.Redis, cache: RedisCache) -> None:
    with cache.flight("k", wait_s=1) as leads:
        assert leads
        client.set("dujiang.cache.flight.k", "somebody else", px=60_000)
    assert client.get("dujiang.cache.flight.k") == b"somebody else"


def test_many_askers_share_one_reading_and_later_ones_hit(redis_url: str, cache: RedisCache) -> None:
    place, reader, answers = target(TRIP, "Noodles on Tuesdays."), Reader(SAYS), list[Answer]()
    ready = threading.Barrier(6)

    def work() -> None:
        with redis.Redis.from_url(redis_url) as own:
            ready.wait()
            answers.append(ask(ASKED, [place], reader, cache=RedisCache(own)))

    threads = [threading.Thread(target=work) for _ in range(6)]
    [thread.start() for thread in threads]
    [thread.join(30) for thread in threads]
    assert len(reader.prompts) == 1
    assert sorted(answer.cache for answer in answers) == ["hit"] * 5 + ["miss"]
    again = ask(ASKED, [place], reader, cache=cache)
    assert again.cache == "hit" and again.text == SAYS and again.citations == answers[0].citations
    assert cache.purge(cache_group("default", "handbook")) > 0
    assert ask(ASKED, [place], reader, cache=cache).cache == "miss"


def test_a_client_that_decodes_gives_the_same_bytes(redis_url: str) -> None:
    with redis.Redis.from_url(redis_url, decode_responses=True) as client:
        cache = RedisCache(client)
        cache.put("k", "高铁".encode(), ttl_s=60)
        assert cache.get("k") == "高铁".encode()


def test_a_server_that_dies_never_fails_a_question(redis_server: RedisServer) -> None:
    place, reader = target(TRIP), Reader(SAYS)
    with redis.Redis(port=redis_server.port, retry=Retry(NoBackoff(), 0)) as client:
        cache = RedisCache(client)
        assert ask(ASKED, [place], reader, cache=cache).cache == "miss"
        redis_server.kill()
        with pytest.raises(Unavailable) as caught:
            cache.get("k")
        assert not caught.value.costs_attempt
        answer = ask(ASKED, [place], reader, cache=cache)
        assert answer.text == SAYS and answer.cache == "off" and "answer cache off" in answer.steps[0].degraded


ASKER = """
import sys, redis, time
from pipeline.answer import ask
from pipeline.cache import RedisCache
from pipeline.contracts import Question
from tests.fakes_answer import Reader, target
from workers.caching import Tally

url, revision, says = sys.argv[1], int(sys.argv[2]), sys.argv[3]

class Held(Reader):
    def complete(self, messages, options):
        client.rpush("asked", 1)
        client.expire("asked", 60)
        client.blpop("go", 30)
        return super().complete(messages, options)

with redis.Redis.from_url(url) as client:
    cache = RedisCache(client)
    place = target("Lin Cen approved the trip to Basalt Bay by high-speed train.", revision=revision)
    answer = ask(Question("Who approved the trip to Basalt Bay?", ("handbook",), k=3), [place], Held(says), cache=cache)
    tally = Tally(cache)
    tally.add(answer)
    tally.flush()
    print(answer.cache, answer.text, flush=True)
"""


def asker(url: str, revision: int, says: str) -> subprocess.Popen[str]:
    """Another process that asks the same, with a reader that waits for the word "go"."""
    command = [sys.executable, "-c", ASKER, url, str(revision), says]
    return subprocess.Popen(command, cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)


def until(true: Callable[[], object]) -> None:
    deadline = time.monotonic() + 60
    while not true():
        assert time.monotonic() < deadline
        time.sleep(0.01)


def outcome(process: subprocess.Popen[str]) -> list[str]:
    out, err = process.communicate(timeout=60)
    assert process.returncode == 0, err
    return out.strip().split(" ", 1)


def test_processes_that_ask_the_same_at_once_share_one_reading_and_are_counted(redis_url: str, cache: RedisCache, client: redis.Redis) -> None:
    processes = [asker(redis_url, 1, SAYS) for _ in range(3)]
    until(lambda: client.llen("asked"))
    flight = next(iter(client.scan_iter("dujiang.cache.flight.*")))
    assert client.pttl(flight) > 0
    client.rpush("go", 1)
    client.expire("go", 60)
    found = sorted(outcome(process) for process in processes)
    assert [state for state, _ in found] == ["hit", "hit", "miss"] and {text for _, text in found} == {SAYS}
    assert client.llen("asked") == 1
    counts = cache.counts()
    assert (counts["hit"], counts["miss"]) == (2, 1) and counts.get("wait", 0) <= 2
    assert cache.sizes([cache_group("default", "handbook"), "nobody/nothing"]) == [3, 0]
    view = Tally(cache).view([cache_group("default", "handbook")])
    assert view is not None and (view.hits, view.misses, view.entries) == (2, 1, 3)
    assert all(client.pttl(key) > 0 for key in client.scan_iter())


def test_a_revision_that_rises_while_somebody_reads_is_not_answered_from_the_older_one(redis_url: str, client: redis.Redis) -> None:
    """The late answer is kept under the revision that it was asked at; whoever asks at the new one computes it."""
    old = asker(redis_url, 1, "The old answer [1].")
    until(lambda: client.llen("asked"))
    new = asker(redis_url, 2, "The new answer [1].")
    until(lambda: client.llen("asked") == 2 or new.poll() is not None)
    client.rpush("go", 1, 1)
    client.expire("go", 60)
    assert outcome(old)[0] == "miss"
    assert outcome(new)[0] == "miss"


def test_a_cache_that_is_away_has_no_counts(redis_server: RedisServer) -> None:
    with redis.Redis(port=redis_server.port, retry=Retry(NoBackoff(), 0)) as client:
        tally = Tally(RedisCache(client))
        redis_server.kill()
        tally.add(ask(ASKED, [target(TRIP)], Reader(SAYS)))
        assert tally.view(["a/b"]) is None
