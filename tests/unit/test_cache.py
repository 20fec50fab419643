"""The cache of one process keeps, forgets and lets one compute for all."""

from __future__ import annotations

import threading

from pipeline.cache import MemoryCache
from pipeline.packs import cache_group, cache_key


def test_a_value_is_found_until_its_time_is_over() -> None:
    cache = MemoryCache()
    cache.put("a", b"1", ttl_s=60)
    cache.put("b", b"2", ttl_s=0)
    assert (cache.get("a"), cache.get("b"), cache.get("c")) == (b"1", None, None)


def test_purging_a_group_forgets_its_keys_and_no_others() -> None:
    cache = MemoryCache()
    cache.put("a", b"1", ttl_s=60, group="one")
    cache.put("ab", b"2", ttl_s=60, group="one")
    cache.put("ab", b"2", ttl_s=60, group="two")
    cache.put("c", b"3", ttl_s=60, group="two")
    assert cache.purge("one") == 2
    assert (cache.get("a"), cache.get("ab"), cache.get("c")) == (None, None, b"3")


def test_the_oldest_entries_make_room() -> None:
    cache = MemoryCache(entries=2)
    for key in "abc":
        cache.put(key, b"x", ttl_s=60)
    assert (cache.get("a"), cache.get("c")) == (None, b"x")


def test_one_of_many_threads_computes_and_the_others_wait_for_it() -> None:
    cache, led, ready = MemoryCache(), list[bool](), threading.Barrier(8)

    def work() -> None:
        ready.wait()
        while cache.get("k") is None:
            with cache.flight("k", wait_s=30) as leader:
                led.append(leader)
                if leader and cache.get("k") is None:
                    cache.put("k", b"x", ttl_s=60)

    threads = [threading.Thread(target=work) for _ in range(8)]
    [thread.start() for thread in threads]
    [thread.join(30) for thread in threads]
    assert led.count(True) >= 1 and cache.get("k") == b"x"


def test_a_leader_that_fails_lets_the_next_one_lead() -> None:
    cache = MemoryCache()
    try:
        with cache.flight("k", wait_s=1) as leader:
            assert leader
            raise ValueError
    except ValueError:
        pass
    with cache.flight("k", wait_s=1) as leader:
        assert leader


def test_keys_depend_on_every_part_and_on_where_it_ends() -> None:
    keys = {cache_key("answer", "ab", "c"), cache_key("answer", "a", "bc"), cache_key("answer", ["ab", "c"]), cache_key("pack", "ab", "c")}
    assert len(keys) == 4
    assert cache_key("answer", {"a": 1, "b": 2}) == cache_key("answer", {"b": 2, "a": 1})
    assert cache_group("t", "c") == "t/c"
