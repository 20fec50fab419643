from __future__ import annotations

import base64
import subprocess
import sys
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from datetime import UTC, datetime, timedelta
from email.utils import format_datetime

import pytest

from pipeline.errors import (
    BadRequest,
    BrokenContract,
    Forbidden,
    NotFound,
    PipelineError,
    QuotaExhausted,
    RateLimited,
    Rejected,
    TooLarge,
    Unauthorised,
    Unavailable,
)
from pipeline.http import Client, is_loopback, retry_after, shown
from tests.simulators.model_server import ModelServer

KEY = "sk-very-secret-0123456789"


@pytest.fixture(scope="module")
def running() -> Iterator[ModelServer]:
    with ModelServer() as server:
        yield server


@pytest.fixture
def server(running: ModelServer) -> ModelServer:
    running.clear()
    return running


def client(server: ModelServer, **options: object) -> Client:
    return Client(server.url, api_key=KEY, service="openai", setting="DUJIANG_EMBEDDER", **options)  # type: ignore[arg-type]


def ask(server: ModelServer, **options: object) -> bytes:
    return client(server, **options).post_json("embeddings", {"model": "m", "input": ["confidential words"]})


def test_a_good_answer_is_given_back_as_bytes(server: ModelServer) -> None:
    assert ask(server).startswith(b'{"object":"list"')
    assert b"stub" in client(server).get("models")


@pytest.mark.parametrize(
    ("status", "code", "expected"),
    [
        (400, "invalid_value", BadRequest),
        (400, "context_length_exceeded", TooLarge),
        (400, "Arrearage", QuotaExhausted),
        (401, "invalid_api_key", Unauthorised),
        (402, "", QuotaExhausted),
        (403, "", Forbidden),
        (404, "model_not_found", NotFound),
        (408, "", Unavailable),
        (413, "", TooLarge),
        (422, "", BadRequest),
        (429, "rate_limit_exceeded", RateLimited),
        (429, "insufficient_quota", QuotaExhausted),
        (301, "", NotFound),
        (500, "", Unavailable),
        (503, "", Unavailable),
    ],
)
def test_each_status_becomes_the_error_that_says_what_to_do_next(server: ModelServer, status: int, code: str, expected: type[PipelineError]) -> None:
    server.config(status=status, code=code)
    with pytest.raises(expected) as caught:
        ask(server)
    assert type(caught.value) is expected
    assert "openai at" in caught.value.detail and str(status) in caught.value.detail
    assert not code or code in caught.value.detail


@pytest.mark.parametrize("status", [400, 401, 403, 404, 413, 422, 429, 500])
def test_no_error_repeats_the_key_the_request_or_the_password_of_the_address(server: ModelServer, status: int) -> None:
    server.config(status=status, code=KEY)
    address = server.url.replace("://", "://someone:pass-word-1@") + "?token=query-secret"
    talker = Client(address, api_key=KEY, service="openai", setting="DUJIANG_EMBEDDER")
    with pytest.raises(PipelineError) as caught:
        talker.post_json("embeddings", {"model": "m", "input": ["confidential words"]})
    chain = f"{caught.value.detail} {caught.value.hint} {caught.value!r} {caught.value.__cause__!r} {talker!r}"
    for secret in (KEY, "pass-word-1", "someone", "query-secret", "confidential"):
        assert secret not in chain


def test_the_password_of_an_address_is_used_for_basic_authentication_when_there_is_no_key() -> None:
    import httpx

    seen: list[str] = []

    def answer(request: httpx.Request) -> httpx.Response:
        seen.append(request.headers["authorization"])
        return httpx.Response(200, content=b"{}")

    for key in ("", KEY):
        Client("http://some%40one:pw@127.0.0.1:9/v1", api_key=key, transport=httpx.MockTransport(answer)).get("models")
    assert seen == [f"Basic {base64.b64encode(b'some@one:pw').decode()}", f"Bearer {KEY}"]


def test_a_wait_in_seconds_reaches_the_engine(server: ModelServer) -> None:
    server.config(fail_429_rate=1.0, retry_after="7")
    with pytest.raises(RateLimited) as caught:
        ask(server)
    assert caught.value.after == 7.0
    assert not caught.value.costs_attempt


def test_a_wait_as_a_date_is_counted_from_the_clock_of_the_server(server: ModelServer) -> None:
    theirs = datetime(2020, 1, 1, 12, tzinfo=UTC)
    server.config(
        fail_429_rate=1.0,
        retry_after=format_datetime(theirs + timedelta(seconds=90), usegmt=True),
        headers={"Date": format_datetime(theirs, usegmt=True)},
    )
    with pytest.raises(RateLimited) as caught:
        ask(server)
    assert caught.value.after == 90.0


def test_a_date_without_a_server_clock_is_counted_from_ours() -> None:
    soon = format_datetime(datetime.now(UTC) + timedelta(seconds=30), usegmt=True)
    wait = retry_after({"retry-after": soon})
    assert wait is not None and 20 < wait <= 30


@pytest.mark.parametrize(
    ("headers", "expected"),
    [
        ({"retry-after": "0"}, 0.0),
        ({"retry-after": "-3"}, 0.0),
        ({"retry-after": "soon"}, None),
        ({"retry-after": "nan"}, None),
        ({"retry-after-ms": "1500"}, 1.5),
        ({"x-ratelimit-reset-requests": "1m30s"}, 90.0),
        ({"x-ratelimit-reset-tokens": "250ms"}, 0.25),
        ({"x-ratelimit-reset-requests": "1s", "x-ratelimit-reset-tokens": "6m0s", "x-ratelimit-remaining-tokens": "0"}, 360.0),
        ({"x-ratelimit-reset-requests": "1s", "x-ratelimit-reset-tokens": "6m0s"}, 1.0),
        ({}, None),
    ],
)
def test_providers_name_the_wait_in_several_ways(headers: dict[str, str], expected: float | None) -> None:
    assert retry_after(headers) == expected


@pytest.mark.parametrize("name", ["x-ratelimit-reset", "anthropic-ratelimit-output-tokens-reset", "ratelimit-reset"])
@pytest.mark.parametrize("form", ["seconds", "milliseconds", "rfc3339"])
def test_a_reset_given_as_a_moment_becomes_a_delay(name: str, form: str) -> None:
    moment = datetime.now(UTC) + timedelta(seconds=40)
    forms = {
        "seconds": f"{moment.timestamp():.0f}",
        "milliseconds": f"{moment.timestamp() * 1000:.0f}",
        "rfc3339": moment.strftime("%Y-%m-%dT%H:%M:%SZ"),
    }
    wait = retry_after({name: forms[form]})
    assert wait is not None and 30 < wait <= 41


def test_of_several_resets_the_one_of_what_is_used_up_counts() -> None:
    soon, late = (datetime.now(UTC) + timedelta(seconds=seconds) for seconds in (5, 90))
    headers = {
        "anthropic-ratelimit-requests-remaining": "12",
        "anthropic-ratelimit-requests-reset": soon.isoformat(),
        "anthropic-ratelimit-tokens-remaining": "0",
        "anthropic-ratelimit-tokens-reset": late.isoformat(),
    }
    wait = retry_after(headers)
    assert wait is not None and 80 < wait <= 90


def test_a_server_error_waits_as_long_as_it_asks_and_costs_no_attempt(server: ModelServer) -> None:
    server.config(fail_500_rate=1.0, retry_after="3")
    with pytest.raises(Unavailable) as caught:
        ask(server)
    assert caught.value.after == 3.0
    assert not caught.value.costs_attempt


def test_nobody_at_the_address_names_the_setting_to_correct() -> None:
    with pytest.raises(Unavailable) as caught:
        Client("http://127.0.0.1:9/v1", service="openai", setting="DUJIANG_EMBEDDER").get("models")
    assert "http://127.0.0.1:9/v1" in caught.value.detail
    assert "DUJIANG_EMBEDDER_BASE_URL" in caught.value.hint
    assert not caught.value.costs_attempt


def test_a_server_that_never_answers_is_given_up_after_the_timeout(server: ModelServer) -> None:
    server.config(hang=True)
    with pytest.raises(Unavailable) as caught:
        ask(server, timeout_s=0.2)
    assert caught.value.code == "timeout"


def test_a_connection_that_breaks_off_is_typed(server: ModelServer) -> None:
    server.config(drop=True)
    with pytest.raises(Unavailable) as caught:
        ask(server)
    assert caught.value.code == "connection_lost"


def test_nothing_is_retried_behind_the_caller(server: ModelServer) -> None:
    server.config(fail_500_rate=1.0)
    with pytest.raises(Unavailable):
        ask(server)
    assert server.stats()["requests"] == 1


@pytest.mark.parametrize("address", ["", "localhost:8000", "ftp://host/v1", "http://", "http://host:port/v1", "http://[broken/v1"])
def test_an_address_that_is_none_is_refused_before_any_call(address: str) -> None:
    with pytest.raises(BadRequest) as caught:
        Client(address, setting="DUJIANG_LLM")
    assert "DUJIANG_LLM_BASE_URL" in caught.value.hint


def test_threads_share_one_client_and_its_connections(server: ModelServer) -> None:
    shared = client(server)
    server.config(latency_ms=20)
    start = threading.Barrier(8)

    def work(_: int) -> None:
        start.wait()
        for _ in range(5):
            shared.get("models")

    with ThreadPoolExecutor(8) as pool:
        list(pool.map(work, range(8)))
    stats = server.stats()
    assert stats["requests"] == 40
    assert stats["most_in_flight"] >= 4
    # the connections of the configuration calls count as well
    assert stats["connections"] <= 8 + 3


def test_loopback_ignores_proxies_of_the_environment(server: ModelServer, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("HTTP_PROXY", "http_proxy", "ALL_PROXY", "all_proxy"):
        monkeypatch.setenv(name, "http://127.0.0.1:9")
    for name in ("NO_PROXY", "no_proxy"):
        monkeypatch.delenv(name, raising=False)
    assert client(server).get("models")


def test_other_machines_are_reached_through_the_proxy_of_the_environment(server: ModelServer, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("HTTP_PROXY", "http_proxy"):
        monkeypatch.setenv(name, server.root)
    for name in ("NO_PROXY", "no_proxy"):
        monkeypatch.delenv(name, raising=False)
    assert b"stub" in Client("http://models.invalid/v1").get("models")


def test_an_answer_is_streamed_line_by_line(server: ModelServer) -> None:
    server.config(answers=["one two three"])
    lines = list(client(server).stream_lines("chat/completions", {"model": "m", "stream": True, "messages": []}))
    assert lines[-2:] == [b"data: [DONE]", b""]
    assert sum(line.startswith(b"data: {") for line in lines) > 2


def test_a_stream_that_breaks_off_is_typed(server: ModelServer) -> None:
    server.config(cut_stream=2)
    with pytest.raises(Unavailable):
        list(client(server).stream_lines("chat/completions", {"model": "m", "stream": True, "messages": []}))


def test_an_answer_without_bounds_is_not_read_to_the_end(server: ModelServer, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("pipeline.http.MAX_BYTES", 1000)
    with pytest.raises(TooLarge):
        ask(server)


def test_broken_compression_is_the_fault_of_the_server() -> None:
    import httpx

    def answer(request: httpx.Request) -> httpx.Response:
        return httpx.Response(200, headers={"content-encoding": "gzip"}, content=b"not gzip")

    with pytest.raises(BrokenContract):
        Client("http://127.0.0.1:9/v1", transport=httpx.MockTransport(answer)).get("models")


def test_the_query_of_the_address_goes_with_every_request() -> None:
    import httpx

    seen: list[str] = []

    def answer(request: httpx.Request) -> httpx.Response:
        seen.append(str(request.url))
        return httpx.Response(200, content=b"{}")

    Client("https://host/openai/v1/?api-version=2026-01-01", transport=httpx.MockTransport(answer)).get("models")
    assert seen == ["https://host/openai/v1/models?api-version=2026-01-01"]


def test_addresses_are_shown_without_their_secrets() -> None:
    assert shown("https://user:pw@host:1/v1/?key=x#y") == "https://host:1/v1"
    assert is_loopback("http://127.0.0.5:1/") and is_loopback("http://[::1]/") and is_loopback("http://localhost:8080")
    assert not is_loopback("http://10.0.0.1/") and not is_loopback("https://api.example.com/v1")


def test_not_even_a_debug_log_holds_secrets_or_content(server: ModelServer) -> None:
    """In a process of its own: the levels of libraries' loggers are the process's."""
    script = (
        "import logging; logging.basicConfig(level=logging.DEBUG)\n"
        "from pipeline import embed, llm; from pipeline.protocols import Generation; from pipeline.settings import Settings\n"
        f"url = {server.url!r} + '?token=query-secret'\n"
        f"key = {KEY!r}\n"
        "given = Settings(embedder='openai:m', embedder_base_url=url, embedder_api_key=key, llm='openai:m', llm_base_url=url, llm_api_key=key)\n"
        "embed.create(given).encode(['confidential'])\n"
        "llm.create(given).complete([('user', 'confidential')], Generation())\n"
        "logging.getLogger('mine').debug('still heard')"
    )
    written = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    assert "still heard" in written.stderr
    for secret in (KEY, "query-secret", "confidential"):
        assert secret not in written.stderr + written.stdout


def test_every_refusal_has_a_hint(server: ModelServer) -> None:
    for status in (400, 401, 403, 404, 409, 413, 429, 500):
        server.config(status=status)
        with pytest.raises((Rejected, RateLimited, Unavailable)) as caught:
            ask(server)
        assert caught.value.hint
