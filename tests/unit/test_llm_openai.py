from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from typing import Any

import pytest

from pipeline import llm
from pipeline.contracts import Completion
from pipeline.errors import (
    BadRequest,
    BrokenContract,
    Forbidden,
    NotFound,
    PipelineError,
    QuotaExhausted,
    RateLimited,
    TooLarge,
    Unauthorised,
    Unavailable,
    Unsupported,
)
from pipeline.llm.openai import OpenAILLM, build
from pipeline.llm.providers import PROVIDERS
from pipeline.protocols import Generation
from pipeline.settings import Settings
from tests.simulators.model_server import ModelServer

KEY = "sk-very-secret-0123456789"
MESSAGES = [("system", "Answer."), ("user", "confidential words")]


@pytest.fixture(scope="module")
def running() -> Iterator[ModelServer]:
    with ModelServer() as server:
        yield server


@pytest.fixture
def server(running: ModelServer) -> ModelServer:
    running.clear()
    return running


def make(server: ModelServer, name: str = "openai:qwen-plus", **options: Any) -> OpenAILLM:
    return build(Settings(llm=name, llm_base_url=server.url, llm_api_key=KEY, **options))


def whole(reader: OpenAILLM, how: str, options: Generation = Generation()) -> tuple[list[str], Completion]:
    """The pieces and the completion, asked for in one piece or streamed."""
    if how == "complete":
        made = reader.complete(MESSAGES, options)
        return [made.text], made
    got = list(reader.stream(MESSAGES, options))
    last = got.pop()
    assert isinstance(last, Completion)
    return [piece for piece in got if isinstance(piece, str)], last


both = pytest.mark.parametrize("how", ["complete", "stream"])


@both
def test_an_answer_comes_whole_with_its_model_usage_and_reason(server: ModelServer, how: str) -> None:
    server.config(answers=["The gate was repaired in March [1]. 三月维修。"])
    pieces, made = whole(make(server), how)
    assert "".join(pieces) == made.text == "The gate was repaired in March [1]. 三月维修。"
    assert made.model == "qwen-plus" and made.finish_reason == "stop"
    assert made.usage.requests == 1
    assert made.usage.prompt_tokens and made.usage.completion_tokens
    assert made.usage.total_tokens == made.usage.prompt_tokens + made.usage.completion_tokens
    assert server.stats()["last"]["roles"] == ["system", "user"]


def test_a_stream_arrives_in_pieces(server: ModelServer) -> None:
    server.config(answers=["one two three four five six"])
    pieces, _ = whole(make(server), "stream")
    assert len(pieces) > 3


@both
def test_unreported_usage_is_unknown_and_not_zero(server: ModelServer, how: str) -> None:
    server.config(no_usage=True)
    usage = whole(make(server), how)[1].usage
    assert (usage.prompt_tokens, usage.completion_tokens, usage.total_tokens, usage.requests) == (None, None, None, 1)


def test_a_service_that_refuses_stream_options_is_asked_without_them_once(server: ModelServer) -> None:
    server.config(refuse_stream_options=True, answers=["words"])
    reader = make(server)
    assert whole(reader, "stream")[1].text == "words"
    assert server.stats()["requests"] == 2
    assert whole(reader, "stream")[1].text == "words"
    assert server.stats()["requests"] == 3


def test_a_request_that_is_refused_for_another_reason_stays_refused(server: ModelServer) -> None:
    reader = make(server)
    server.config(status=400, code="invalid_value")
    with pytest.raises(BadRequest):
        whole(reader, "stream")
    server.clear()
    assert whole(reader, "stream")[1].usage.total_tokens is not None


@both
def test_the_reason_for_ending_is_the_services(server: ModelServer, how: str) -> None:
    server.config(finish_reason="length", answers=["half a sen"])
    assert whole(make(server), how)[1].finish_reason == "length"


@both
def test_generation_settings_are_sent_only_when_given(server: ModelServer, how: str) -> None:
    whole(make(server), how)
    assert not {"temperature", "top_p", "max_tokens", "max_completion_tokens"} & set(server.stats()["last"])
    whole(make(server), how, Generation(temperature=0.0, top_p=0.5, max_tokens=9))
    last = server.stats()["last"]
    assert (last["temperature"], last["top_p"], last["max_tokens"]) == (0.0, 0.5, 9)


@both
@pytest.mark.parametrize(
    ("status", "code", "expected"),
    [
        (400, "", BadRequest),
        (400, "context_length_exceeded", TooLarge),
        (401, "", Unauthorised),
        (403, "", Forbidden),
        (404, "model_not_found", NotFound),
        (409, "", PipelineError),
        (413, "", TooLarge),
        (422, "", BadRequest),
        (429, "", RateLimited),
        (429, "insufficient_quota", QuotaExhausted),
        (301, "", NotFound),
        (500, "", Unavailable),
        (503, "", Unavailable),
    ],
)
def test_each_status_becomes_the_error_that_says_what_to_do_next(
    server: ModelServer, how: str, status: int, code: str, expected: type[PipelineError]
) -> None:
    server.config(status=status, code=code)
    with pytest.raises(expected) as caught:
        whole(make(server), how)
    assert str(status) in caught.value.detail and "openai at" in caught.value.detail and caught.value.hint


@both
@pytest.mark.parametrize("fault", [{"status": 400}, {"status": 401}, {"status": 429}, {"status": 500}, {"garbage": True}, {"drop": True}])
def test_no_error_repeats_the_key_the_request_or_the_password_of_the_address(server: ModelServer, how: str, fault: dict[str, Any]) -> None:
    server.config(**fault, code=KEY)
    address = server.url.replace("://", "://someone:pass-word-1@")
    reader = build(Settings(llm="openai:m", llm_base_url=address, llm_api_key=KEY))
    with pytest.raises(PipelineError) as caught:
        whole(reader, how)
    said = f"{caught.value.detail} {caught.value.hint} {caught.value!r} {caught.value.__cause__!r}"
    assert caught.value.__suppress_context__ or caught.value.__context__ is None
    for secret in (KEY, "pass-word-1", "someone", "confidential"):
        assert secret not in said


@both
def test_a_wait_reaches_the_caller_and_nothing_is_retried(server: ModelServer, how: str) -> None:
    server.config(fail_429_rate=1.0, retry_after="4")
    with pytest.raises(RateLimited) as caught:
        whole(make(server), how)
    assert caught.value.after == 4.0
    assert server.stats()["requests"] == 1


@both
@pytest.mark.parametrize("fault", [{"drop": True}, {"hang": True}])
def test_a_service_that_is_away_names_the_setting(server: ModelServer, how: str, fault: dict[str, bool]) -> None:
    server.config(**fault)
    with pytest.raises(Unavailable) as caught:
        whole(make(server, request_timeout_s=0.3), how)
    assert "DUJIANG_LLM_BASE_URL" in caught.value.hint and not caught.value.costs_attempt


@both
def test_an_answer_that_is_not_in_the_protocols_form_is_refused(server: ModelServer, how: str) -> None:
    server.config(garbage=True)
    with pytest.raises(BrokenContract) as caught:
        whole(make(server), how)
    assert server.url in caught.value.detail and "qwen-plus" in caught.value.detail


@pytest.mark.parametrize(
    "body", [b"[]", b"7", b"{}", b'{"choices": []}', b'{"choices": [1]}', b'{"choices": [{"message": {"content": 7}}]}', b'"text"']
)
@both
def test_no_shape_of_answer_gets_through_unchecked(server: ModelServer, how: str, body: bytes) -> None:
    server.config(raw=(b"data: " + body + b"\n\n" if how == "stream" else body).decode(), raw_type="text/event-stream" if how == "stream" else "")
    with pytest.raises((BrokenContract, Unavailable)):
        whole(make(server), how)


@pytest.mark.parametrize("pieces", [1, 3])
def test_a_stream_that_breaks_off_is_no_answer(server: ModelServer, pieces: int) -> None:
    server.config(cut_stream=pieces, answers=["one two three four five six seven eight"])
    with pytest.raises(Unavailable):
        whole(make(server), "stream")


def test_closing_a_stream_ends_the_request(server: ModelServer) -> None:
    server.config(answers=["one two three four"], pause_ms=5)
    stream = make(server).stream(MESSAGES, Generation())
    assert isinstance(next(iter(stream)), str)
    stream.close()  # type: ignore[attr-defined]


def test_a_server_without_keys_gets_none(server: ModelServer) -> None:
    server.config(key="none")
    with pytest.raises(Unauthorised):
        build(Settings(llm="ollama:m", llm_base_url=server.url)).complete(MESSAGES, Generation())


def test_azure_gets_its_key_in_its_own_header(server: ModelServer) -> None:
    server.config(key=KEY, key_header="api-key", answers=["words"])
    assert make(server, "azure:deployment").complete(MESSAGES, Generation()).text == "words"


def test_loopback_ignores_proxies_of_the_environment(server: ModelServer, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("HTTP_PROXY", "http_proxy", "ALL_PROXY", "all_proxy"):
        monkeypatch.setenv(name, "http://127.0.0.1:9")
    assert make(server).complete(MESSAGES, Generation()).text


def test_half_a_surrogate_pair_does_not_stop_a_question(server: ModelServer) -> None:
    assert make(server).complete([("user", "broken \ud83d half")], Generation()).text


def test_nothing_is_imported_or_called_before_the_first_question() -> None:
    script = (
        "import sys; from pipeline import llm; from pipeline.settings import Settings\n"
        "reader = llm.create(Settings(llm='openai:gpt-x'))\n"
        "assert reader.name == 'openai:gpt-x' and reader.revision\n"
        "heavy = {'openai', 'httpx', 'httpx2'} & set(sys.modules)\n"
        "assert not heavy, heavy"
    )
    subprocess.run([sys.executable, "-c", script], check=True)


def test_the_revision_tells_models_and_servers_apart() -> None:
    made = {llm.create(Settings(llm=name, llm_base_url=url)).revision for name in ("openai:a", "openai:b") for url in ("", "http://127.0.0.1:1/v1")}
    assert len(made) == 4


@pytest.mark.parametrize("name", sorted(PROVIDERS))
def test_every_preset_makes_a_reader(name: str) -> None:
    address = "" if PROVIDERS[name].base_url else "http://127.0.0.1:9/v1"
    assert llm.create(Settings(llm=f"{name}:m:latest", llm_base_url=address)).name == f"{name}:m:latest"


@pytest.mark.parametrize(
    ("given", "error", "said"),
    [
        (Settings(llm="nonsense:m"), Unsupported, "nonsense"),
        (Settings(llm="openai"), BadRequest, "model"),
        (Settings(llm="azure:m"), BadRequest, "address"),
        (Settings(llm="openai:m", llm_base_url="nowhere"), BadRequest, "DUJIANG_LLM_BASE_URL"),
    ],
)
def test_a_wrong_setting_is_named_at_once(given: Settings, error: type[PipelineError], said: str) -> None:
    with pytest.raises(error) as caught:
        llm.create(given)
    assert said in caught.value.detail and caught.value.hint
