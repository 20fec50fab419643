"""Elasticsearch stopped, throttling, or refusing single rows in mid-run, through real workers, behind a proxy that does the harm."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from threading import Event

import orjson
import pytest

from tests.chaos.proof import Begin, Reference, Trial, balanced, failures_say_why, nothing_left, once_each
from tests.integration.elasticsearch_proxy import CutOff, Proxy, Request, proxied
from tests.servers import Lacking, lacking
from tests.servers import elasticsearch as es
from tests.simulators.model_server import ModelServer
from tests.system import Counts, System, until

Forward = Callable[[Request], bytes]


@pytest.fixture(scope="module")
def proxy(elasticsearch_url: str) -> Iterator[Proxy]:
    with proxied(elasticsearch_url) as running:
        yield running


@pytest.fixture(scope="module")
def remote(tmp_path_factory: pytest.TempPathFactory, model: ModelServer, proxy: Proxy) -> Iterator[System]:
    """A system whose store is Elasticsearch; a collection's name in it holds the tenant's, so tests do not meet there either."""
    home = tmp_path_factory.mktemp("home")
    with System(home, store_url=proxy.url, embedder="openai:stub", embedder_base_url=model.url) as running:
        yield running


@pytest.fixture
def tenant(request: pytest.FixtureRequest, remote: System, proxy: Proxy, tmp_path: Path) -> Iterator[str]:
    """A name that no earlier session used; what was made under it is dropped."""
    proxy.rule = None
    proxy.seen.clear()
    name = f"t-{tmp_path.parent.name[-8:]}-{abs(hash(request.node.name)) % 10**6}"
    yield name
    proxy.rule = None
    remote.platform.delete_collection("docs", tenant=name)


def test_elasticsearch_gone_in_the_middle_of_a_bulk_request_is_waited_for(remote: System, proxy: Proxy, begin: Begin, tenant: str) -> None:
    away = Event()

    def rule(request: Request, forward: Forward) -> bytes | None:
        # The first bulk request arrives, but its answer does not; then nobody answers.
        if request.is_bulk and not away.is_set():
            forward(request)
            away.set()
        if away.is_set():
            raise CutOff
        return None

    proxy.rule = rule
    trial = begin(remote, tenant)
    until(away.is_set, 30.0, "it is gone")
    waiting = "SELECT attempts FROM documents WHERE tenant = ? AND status = 'retry' AND stage = 'index'"
    rows = until(lambda: remote.rows(waiting, tenant), 30.0, "documents wait for it")
    assert {attempts for (attempts,) in rows} == {0}
    proxy.rule = None
    trial.prove()


@pytest.mark.full
def test_rows_that_are_throttled_or_fail_in_part_are_sent_again(remote: System, proxy: Proxy, begin: Begin, tenant: str) -> None:
    """Of each bulk request, every third row is refused once with 429, every fifth once with 503."""
    tried: set[str] = set()

    def rule(request: Request, forward: Forward) -> bytes | None:
        if not request.is_bulk:
            return None
        return partly(request, forward, tried)

    proxy.rule = rule
    trial = begin(remote, tenant)
    trial.prove()
    assert len(tried) > 100


def partly(request: Request, forward: Forward, tried: set[str]) -> bytes | None:
    lines = request.body.splitlines(keepends=True)
    actions = [orjson.loads(line) for line in lines[::2]]
    if len(lines) != 2 * len(actions) or not all("index" in action for action in actions):
        return None
    names = [action["index"]["_id"] for action in actions]
    refused: dict[str, int] = {}
    for place, name in enumerate(names):
        if name not in tried and (place % 3 == 0 or place % 5 == 0):
            tried.add(name)
            refused[name] = 429 if place % 3 == 0 else 503
    if not refused:
        return None
    passed = b"".join(b"".join(lines[2 * i : 2 * i + 2]) for i, name in enumerate(names) if name not in refused)
    items = iter(orjson.loads(forward(Request(request.method, request.path, passed)))["items"] if passed else [])
    answer = [
        {"index": {"_id": name, "status": refused[name], "error": {"type": "es_rejected_execution_exception", "reason": "as configured"}}}
        if name in refused
        else next(items)
        for name in names
    ]
    return orjson.dumps({"took": 1, "errors": True, "items": answer})


def test_a_document_whose_rows_the_mapping_refuses_fails_alone(remote: System, proxy: Proxy, begin: Begin, reference: Reference, tenant: str) -> None:
    """The refusal is Elasticsearch's own: on its way, a number of the document becomes one that the mapping cannot hold."""
    mark = b"Edition 1 of the page of station 7."

    def rule(request: Request, forward: Forward) -> bytes | None:
        if not request.is_bulk or mark not in request.body:
            return None
        return forward(Request(request.method, request.path, spoilt(request.body, mark)))

    proxy.rule = rule
    trial = begin(remote, tenant)
    ended = remote.finish(trial.run)
    balanced(ended)
    assert (ended.indexed, ended.failed) == (reference.counts.indexed - 1, 1)
    failures_say_why(remote, tenant, 1)
    (failure,) = ended.failures
    assert failure.document.endswith("/station-0007.md") and failure.stage == "index"
    once_each(remote, tenant)
    nothing_left(remote)
    assert remote.audit(tenant=tenant).documents == ended.indexed
    proxy.rule = None
    begin(remote, tenant)
    until(lambda: same(remote, tenant, reference.counts), 60.0, "the next run brings it")


def spoilt(body: bytes, mark: bytes) -> bytes:
    """The row that holds the mark gets a position beyond every integer."""
    lines = body.splitlines(keepends=True)
    for place, line in enumerate(lines):
        if mark in line and line.startswith(b"{"):
            row = orjson.loads(line)
            if "start" in row:
                lines[place] = orjson.dumps(row | {"start": 2**40}) + b"\n"
    return b"".join(lines)


def same(system: System, tenant: str, counts: Counts) -> bool:
    if system.rows("SELECT 1 FROM runs WHERE tenant = ? AND finished_at IS NULL", tenant):
        return False
    return system.audit(tenant=tenant).digest == counts.digest


@pytest.mark.full
def test_an_elasticsearch_that_is_stopped_for_a_while_is_waited_for(tmp_path: Path, model: ModelServer, corpus: Path, reference: Reference) -> None:
    try:
        server = es.Elasticsearch(es.CURRENT)
    except Lacking as reason:
        lacking("Elasticsearch", str(reason))
    try:
        server.start()
        with System(tmp_path / "home", store_url=server.url, embedder="openai:stub", embedder_base_url=model.url) as system:
            trial = Trial(corpus, reference, model, system, "stopped").begin()
            trial.reached(1)
            server.stop()
            server.start()
            trial.prove(seconds=240.0)
    finally:
        server.close()
