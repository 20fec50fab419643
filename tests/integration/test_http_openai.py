"""OpenAI's own client over collections: models, answers, streams, errors."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from http.client import HTTPConnection
from pathlib import Path

import httpx
import openai
import pytest
from openai import OpenAI
from openai.types.chat import ChatCompletionMessageParam

from pipeline.contracts import Question
from pipeline.errors import QuotaExhausted, Unavailable
from tests.served_api import Served, served
from tests.simulators.model_server import ModelServer

TEXTS = {
    "travel.md": "# Travel\n\nThe head of department approves travel before it is booked. Trains are preferred to planes.\n",
    "出差.txt": "林岑批准了这次出差，乘坐高铁前往石桥站。",
}
USER: list[ChatCompletionMessageParam] = [{"role": "user", "content": "Who approves travel?"}]


@pytest.fixture(scope="module")
def model() -> Iterator[ModelServer]:
    with ModelServer() as server:
        yield server


@pytest.fixture(scope="module")
def home(tmp_path_factory: pytest.TempPathFactory, model: ModelServer) -> Iterator[Served]:
    with served(tmp_path_factory.mktemp("openai"), llm="openai:stub", llm_base_url=model.url) as here:
        here.ingest("handbook", TEXTS, year=2024)
        here.ingest("secret", {"plan.md": "# Plan\n\nThe secret station stands behind the stone bridge.\n"})
        yield here


@pytest.fixture(scope="module")
def key(home: Served) -> str:
    return home.key("reader", "handbook")


@pytest.fixture
def client(home: Served, key: str, model: ModelServer) -> Iterator[OpenAI]:
    model.config(answers=[], finish_reason="stop", no_usage=False)
    with OpenAI(base_url=f"{home.url}/v1", api_key=key, max_retries=0) as made:
        yield made


def test_collections_are_models_as_far_as_the_key_may_read(client: OpenAI) -> None:
    assert [one.id for one in client.models.list()] == ["dujiang/handbook"]
    one = client.models.retrieve("dujiang/handbook")
    assert client.models.retrieve("dujiang/handbook,handbook").id == "dujiang/handbook,handbook"
    assert (one.object, one.owned_by) == ("model", "dujiang") and one.created > 1_700_000_000
    for name in ("dujiang/secret", "dujiang/nothing"):
        with pytest.raises(openai.NotFoundError) as raised:
            client.models.retrieve(name)
        assert raised.value.code == "model_not_found"


def test_an_answer_carries_its_citations_as_markers_and_as_annotations(client: OpenAI, home: Served, key: str) -> None:
    got = client.chat.completions.create(model="dujiang/handbook", messages=USER, temperature=0.1, max_tokens=200)
    message = got.choices[0].message
    assert message.content and "[1]" in message.content and got.choices[0].finish_reason == "stop"
    assert got.usage is not None and got.usage.total_tokens == got.usage.prompt_tokens + got.usage.completion_tokens > 0
    assert message.annotations
    cited = message.annotations[0].url_citation
    assert message.content[cited.start_index : cited.end_index].strip() and cited.title == "Travel"
    opened = httpx.get(f"{home.url}{cited.url}", headers={"Authorization": f"Bearer {key}"}).json()
    ours = got.model_dump()["dujiang"]
    assert opened["text"] == ours["citations"][0]["quote"] and not ours["refused"]


def test_a_stream_is_the_same_answer_in_pieces_with_the_annotations_at_its_end(client: OpenAI) -> None:
    whole = client.chat.completions.create(model="dujiang/handbook", messages=USER)
    chunks = list(client.chat.completions.create(model="dujiang/handbook", messages=USER, stream=True, stream_options={"include_usage": True}))
    text = "".join(chunk.choices[0].delta.content or "" for chunk in chunks if chunk.choices)
    assert text == whole.choices[0].message.content and len(chunks) > 4
    assert chunks[0].choices[0].delta.role == "assistant" and len({chunk.id for chunk in chunks}) == 1
    last = next(chunk for chunk in reversed(chunks) if chunk.choices)
    assert last.choices[0].finish_reason == "stop"
    assert last.choices[0].delta.model_dump()["annotations"] == [one.model_dump() for one in whole.choices[0].message.annotations or ()]
    assert chunks[-1].choices == [] and chunks[-1].usage is not None and chunks[-1].usage.total_tokens > 0


def test_markers_that_were_put_in_afterwards_move_no_annotation_of_a_stream(client: OpenAI, model: ModelServer) -> None:
    said = "The head of department approves travel before it is booked. Trains are preferred to planes."
    model.config(answers=[said])
    chunks = list(client.chat.completions.create(model="dujiang/handbook", messages=USER, stream=True))
    assert "".join(chunk.choices[0].delta.content or "" for chunk in chunks) == said
    first, *_, last = chunks[-1].choices[0].delta.model_dump()["annotations"]
    span = first["url_citation"]
    assert said[span["start_index"] : span["end_index"]].startswith("The head of department")
    span = last["url_citation"]
    assert said[span["start_index"] : span["end_index"]].strip().startswith("Trains are preferred"), "after the first marker"
    ours = chunks[-1].model_dump()["dujiang"]
    cited = ours["citations"][0]
    assert "[1]" in ours["text"] and ours["text"][cited["answer_start"] : cited["answer_end"]].startswith("The head of department")


def test_earlier_turns_and_instructions_reach_the_reader(client: OpenAI, model: ModelServer) -> None:
    client.chat.completions.create(
        model="dujiang/handbook",
        messages=[
            {"role": "developer", "content": "Answer like a station keeper."},
            {"role": "user", "content": "Tell me of travel."},
            {"role": "assistant", "content": "What of it?"},
            {"role": "user", "content": [{"type": "text", "text": "Who approves travel?"}]},
        ],
    )
    assert model.stats()["last"]["roles"] == ["system", "user", "assistant", "user"]


def test_a_refusal_is_a_completion_that_says_so(client: OpenAI) -> None:
    got = client.chat.completions.create(model="dujiang/handbook", messages=[{"role": "user", "content": "火星上的钻石矿由哪位厨师经营？"}])
    message = got.choices[0].message
    assert message.refusal and message.content == message.refusal and not message.annotations
    assert got.model_dump()["dujiang"]["refused"] and got.usage is None, "nobody read, so nothing was used"
    asked: list[ChatCompletionMessageParam] = [{"role": "user", "content": "火星上的钻石矿由哪位厨师经营？"}]
    chunks = list(client.chat.completions.create(model="dujiang/handbook", messages=asked, stream=True))
    assert "".join(chunk.choices[0].delta.content or "" for chunk in chunks) == message.content
    assert chunks[-1].choices[0].delta.refusal == message.refusal and chunks[-1].choices[0].finish_reason == "stop"


def test_what_is_not_reported_is_null(client: OpenAI, model: ModelServer) -> None:
    model.config(no_usage=True)
    assert client.chat.completions.create(model="dujiang/handbook", messages=USER).usage is None


def test_filters_and_the_number_of_chunks_can_be_given_beside_openais_own_fields(client: OpenAI) -> None:
    got = client.chat.completions.create(model="dujiang/handbook", messages=USER, extra_body={"dujiang": {"filters": ["year>=2030"]}})
    assert got.choices[0].message.refusal
    for wrong, named in (({"k": 0}, "dujiang.k"), ({"filter": ["year>=2030"]}, "dujiang.filter"), ([1], "dujiang")):
        with pytest.raises(openai.BadRequestError) as raised:
            client.chat.completions.create(model="dujiang/handbook", messages=USER, extra_body={"dujiang": wrong})
        assert raised.value.param == named


def test_what_has_no_effect_is_named_in_the_answer(client: OpenAI, model: ModelServer) -> None:
    messages: list[ChatCompletionMessageParam] = [
        {"role": "user", "content": "Look it up."},
        {"role": "assistant", "content": None, "tool_calls": [{"id": "1", "type": "function", "function": {"name": "look", "arguments": "{}"}}]},
        {"role": "tool", "tool_call_id": "1", "content": "nothing"},
        *USER,
    ]
    got = client.chat.completions.create(model="dujiang/handbook", messages=messages, stop=["x"], seed=7, extra_body={"chat_id": "a"})
    assert got.model_dump()["dujiang"]["ignored"] == ["chat_id", "seed", "stop", "messages.2"]
    assert model.stats()["last"]["roles"] == ["system", "user", "user"]
    plain = client.chat.completions.create(model="dujiang/handbook", messages=USER, max_completion_tokens=100, temperature=0.0, top_p=0.5)
    assert "ignored" not in plain.model_dump()["dujiang"]


def test_errors_have_openais_shape(home: Served, client: OpenAI) -> None:
    with OpenAI(base_url=f"{home.url}/v1", api_key="wrong", max_retries=0) as stranger, pytest.raises(openai.AuthenticationError) as raised:
        stranger.models.list()
    assert raised.value.code == "invalid_api_key"
    with pytest.raises(openai.NotFoundError) as unknown:
        client.chat.completions.create(model="dujiang/secret", messages=USER)
    assert unknown.value.code == "model_not_found"
    image = [{"type": "image_url", "image_url": {"url": "x"}}]
    for wrong in ([], [{"role": "system", "content": "x"}], [{"role": "user", "content": image}], [{"role": ["user"], "content": "x"}], [7]):
        with pytest.raises(openai.BadRequestError) as refused:
            client.chat.completions.create(model="dujiang/handbook", messages=wrong)  # type: ignore[arg-type]
        assert refused.value.type == "invalid_request_error" and (refused.value.param or "").startswith("messages")
    for more in ({"n": 2}, {"temperature": 9}, {"stream": "yes"}):
        with pytest.raises(openai.BadRequestError) as refused:
            client.chat.completions.create(model="dujiang/handbook", messages=USER, extra_body=more)
        assert refused.value.param == next(iter(more))
    with pytest.raises(openai.NotFoundError):
        client.embeddings.create(model="dujiang/handbook", input="x")


def test_authentication_comes_before_the_body_is_looked_at(home: Served, key: str) -> None:
    assert key, "one exists, so one is needed"
    got = httpx.post(f"{home.url}/v1/chat/completions", content=b"{" * 10, headers={"Content-Type": "application/json"})
    assert got.status_code == 401 and got.json()["error"]["code"] == "invalid_api_key"
    for kind, size in (("text/plain", "2"), ("application/json", "9000000")):
        announced = HTTPConnection(home.url.removeprefix("http://"), timeout=30)
        announced.putrequest("POST", "/v1/chat/completions")
        announced.putheader("Content-Type", kind)
        announced.putheader("Content-Length", size)
        announced.endheaders()
        assert announced.getresponse().status == 401, "before a byte of the body was sent"
        announced.close()


def test_the_routes_stand_in_the_api_page(home: Served) -> None:
    paths = httpx.get(f"{home.url}/openapi.json").json()["paths"]
    assert {"/v1/models", "/v1/models/{model}", "/v1/chat/completions", "/dify/retrieval"} <= set(paths)
    assert all(paths[path]["post"]["security"] for path in ("/v1/chat/completions", "/dify/retrieval"))


def test_a_stream_that_breaks_off_is_an_error_and_is_never_replayed_as_whole(home: Served, client: OpenAI, monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(_question: Question) -> Iterator[str]:
        yield "The head "
        raise Unavailable("the model stopped answering")

    with monkeypatch.context() as patch:
        patch.setattr(home.platform, "stream", broken)
        with pytest.raises(openai.APIError) as raised:
            list(client.chat.completions.create(model="dujiang/handbook", messages=USER, stream=True, extra_headers={"Idempotency-Key": "once"}))
        assert "the model stopped answering" in raised.value.message
    again = client.chat.completions.create(model="dujiang/handbook", messages=USER, stream=True, extra_headers={"Idempotency-Key": "once"})
    assert list(again)[-1].choices[0].finish_reason == "stop"


def test_when_the_client_leaves_the_reader_stops(home: Served, client: OpenAI, monkeypatch: pytest.MonkeyPatch) -> None:
    closed, pause = threading.Event(), threading.Event()

    def endless(_question: Question) -> Iterator[str]:
        try:
            while True:
                yield "word "
                pause.wait(0.01)
        finally:
            closed.set()

    monkeypatch.setattr(home.platform, "stream", endless)
    stream = client.chat.completions.create(model="dujiang/handbook", messages=USER, stream=True)
    assert next(chunk.choices[0].delta.content for chunk in stream if chunk.choices[0].delta.content) == "word "
    assert not closed.is_set()
    stream.close()
    assert closed.wait(30.0), "the stream from the model is closed"


def test_a_quota_that_is_used_up_has_openais_code(home: Served, client: OpenAI, monkeypatch: pytest.MonkeyPatch) -> None:
    def spent(_question: Question) -> None:
        raise QuotaExhausted("the provider's quota is used up")

    monkeypatch.setattr(home.platform, "ask", spent)
    with pytest.raises(openai.RateLimitError) as raised:
        client.chat.completions.create(model="dujiang/handbook", messages=USER)
    assert (raised.value.code, raised.value.type) == ("insufficient_quota", "insufficient_quota")


def test_a_reader_that_is_limited_is_told_as_such(tmp_path: Path) -> None:
    with ModelServer(status=429, retry_after="7") as busy, served(tmp_path, llm="openai:busy", llm_base_url=busy.url) as here:
        here.ingest("handbook", TEXTS)
        with OpenAI(base_url=f"{here.url}/v1", api_key=here.key("reader"), max_retries=0) as client, pytest.raises(openai.RateLimitError) as limited:
            client.chat.completions.create(model="dujiang/handbook", messages=USER)
    assert limited.value.code == "rate_limit_exceeded" and int(limited.value.response.headers["retry-after"]) >= 1


def test_many_ask_at_once(client: OpenAI) -> None:
    with ThreadPoolExecutor(8) as pool:
        asked = [pool.submit(client.chat.completions.create, model="dujiang/handbook", messages=USER) for _ in range(24)]
        assert len({one.result().choices[0].message.content for one in asked}) == 1
