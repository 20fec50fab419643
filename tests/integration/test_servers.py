"""The servers that other tests stand on do what those tests take for granted."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from collections.abc import Callable

import amqp
import psycopg
import pytest
import redis

from tests.house.tree import ROOT
from tests.servers.postgres import Postgres
from tests.servers.rabbitmq import RabbitMQ
from tests.servers.redis import RedisServer, endless_keys


def until(condition: Callable[[], bool], deadline_s: float = 30) -> None:
    end = time.monotonic() + deadline_s
    while not condition():
        assert time.monotonic() < end, "the condition did not come true in time"
        time.sleep(0.02)


def refused(server: RedisServer) -> bool:
    try:
        with server.client() as client:
            client.ping()
    except redis.ConnectionError:
        return True
    return False


def test_a_killed_redis_refuses_and_comes_back_empty_on_the_same_port(redis_server: RedisServer) -> None:
    with redis_server.client() as client:
        client.set("dujiang.x", "1", ex=60)
    port = redis_server.port
    redis_server.kill()
    assert refused(redis_server)
    redis_server.restart()
    with redis_server.client() as client:
        assert client.dbsize() == 0
    assert redis_server.port == port


def test_flush_empties_every_database(redis_server: RedisServer) -> None:
    for database in (0, 1):
        with redis_server.client(database) as client:
            client.set("dujiang.x", "1", ex=60)
    redis_server.flush()
    for database in (0, 1):
        with redis_server.client(database) as client:
            assert client.dbsize() == 0


def test_a_key_without_expiry_is_noticed_and_a_queue_is_not(redis_server: RedisServer) -> None:
    with redis_server.client() as client:
        client.set("dujiang.cache.kept", "1")
        client.set("dujiang.cache.expiring", "1", ex=60)
        client.rpush("dujiang.parse.bulk", "message")
        client.sadd("_kombu.binding.dujiang.parse.bulk", "binding")
        assert endless_keys(client) == {"dujiang.cache.kept"}


@pytest.mark.parametrize("round", [1, 2])
def test_each_test_has_a_database_of_its_own(postgres_database: str, round: int) -> None:
    with psycopg.connect(postgres_database.replace("+psycopg", "")) as connection:
        connection.execute("CREATE TABLE only_here (x int)")
        assert connection.execute("SELECT count(*) FROM pg_tables WHERE tablename = 'only_here'").fetchone() == (1,)


def test_a_killed_postgres_keeps_what_was_committed(postgres_database: str, postgres: Postgres) -> None:
    url = postgres_database.replace("+psycopg", "")
    with psycopg.connect(url, autocommit=True) as connection:
        connection.execute("CREATE TABLE kept (x int)")
    postgres.kill()
    with pytest.raises(psycopg.OperationalError):
        psycopg.connect(url, connect_timeout=5)
    postgres.start()
    with psycopg.connect(url) as connection:
        assert connection.execute("SELECT count(*) FROM kept").fetchone() == (0,)


@pytest.mark.skipif(sys.platform != "linux", reason="only Linux ends a child with its parent")
@pytest.mark.parametrize("module", ["tests.servers.redis", "tests.servers.postgres"])
def test_a_server_dies_with_the_process_that_started_it_even_when_that_is_killed(module: str, request: pytest.FixtureRequest) -> None:
    if module.endswith("postgres"):
        request.getfixturevalue("postgres")  # skips where there is none
    with subprocess.Popen([sys.executable, "-m", module], cwd=ROOT, stdout=subprocess.PIPE, text=True) as owner:
        assert owner.stdout is not None
        assert owner.stdout.readline().strip()
        children = [int(pid) for pid in open(f"/proc/{owner.pid}/task/{owner.pid}/children").read().split()]
        assert children
        owner.kill()
    until(lambda: not any(alive(pid) for pid in children))


def alive(pid: int) -> bool:
    """Running, and not merely waiting for its parent to take note of its end."""
    if not os.path.exists(f"/proc/{pid}/stat"):
        return False
    try:
        with open(f"/proc/{pid}/stat") as stat:
            return stat.read().rpartition(")")[2].split()[0] != "Z"
    except (FileNotFoundError, ProcessLookupError):
        return False


def test_a_rabbitmq_has_virtual_hosts_of_its_own_for_every_user(rabbitmq: RabbitMQ) -> None:
    one, other = rabbitmq.fresh(), rabbitmq.fresh()
    with rabbitmq.connect(one) as here, rabbitmq.connect(other) as there:
        here.channel().queue_declare("only.here", auto_delete=False)
        with pytest.raises(amqp.NotFound):
            there.channel().queue_declare("only.here", passive=True)
