"""Each provider is asked in its own shape, and whatever it says becomes scores in 0 to 1 or a typed error."""

from __future__ import annotations

import json

import pytest

from pipeline.errors import BadRequest, BrokenContract, Unsupported
from pipeline.rerank import HttpReranker, create
from pipeline.settings import Settings


class Recorder:
    """The network's end: keeps what was sent and gives a fixed answer."""

    def __init__(self, answer: object) -> None:
        self.answer, self.path, self.body = answer, "", {}

    def post_json(self, path: str, body: bytes) -> bytes:
        self.path, self.body = path, json.loads(body)
        return self.answer if isinstance(self.answer, bytes) else json.dumps(self.answer).encode()


RESULTS = [{"index": 1, "relevance_score": 0.9}, {"index": 0, "relevance_score": 0.2}]


def asked(spec: str, answer: object, **settings: str) -> tuple[HttpReranker, Recorder]:
    recorder = Recorder(answer)
    reranker = create(Settings(reranker=spec, **settings), recorder)  # type: ignore[arg-type]
    assert isinstance(reranker, HttpReranker)
    return reranker, recorder


@pytest.mark.parametrize("provider", ["jina", "cohere", "xinference"])
def test_flat_providers_get_query_and_documents_side_by_side(provider: str) -> None:
    reranker, sent = asked(f"{provider}:m", {"results": RESULTS}, reranker_base_url="http://127.0.0.1:1/v1")
    assert reranker.rerank("q", ["a", "b"]) == [0.2, 0.9]
    assert sent.path == "rerank"
    assert {"model": "m", "query": "q", "documents": ["a", "b"], "top_n": 2}.items() <= sent.body.items()


def test_dashscope_gets_its_nested_shape_and_its_flat_one_on_the_compatible_address() -> None:
    reranker, sent = asked("dashscope:gte-rerank-v2", {"output": {"results": RESULTS}, "usage": {"total_tokens": 12}})
    scores, usage = reranker.score("q", ["a", "b"])
    assert scores == [0.2, 0.9]
    assert sent.path == "services/rerank/text-rerank/text-rerank"
    assert sent.body["input"] == {"query": "q", "documents": ["a", "b"]}
    assert (usage.total_tokens, usage.requests) == (12, 1)
    reranker, sent = asked("dashscope:qwen3-rerank", {"results": RESULTS}, reranker_base_url="https://dashscope.aliyuncs.com/compatible-api/v1")
    reranker.rerank("q", ["a", "b"])
    assert sent.path == "reranks" and sent.body["documents"] == ["a", "b"]


def test_tokens_that_a_provider_does_not_report_stay_unknown() -> None:
    reranker, _ = asked("cohere:m", {"results": RESULTS, "meta": {"billed_units": {"search_units": 1}}})
    assert reranker.score("q", ["a", "b"])[1].total_tokens is None


def test_logits_become_scores_in_zero_to_one_in_the_same_order() -> None:
    reranker, _ = asked("jina:m", {"results": [{"index": 0, "relevance_score": -4.0}, {"index": 1, "relevance_score": 7.5}]})
    low, high = reranker.rerank("q", ["a", "b"])
    assert 0.0 < low < 0.5 < high < 1.0


@pytest.mark.parametrize("answer", [b"<html>", {"error": "no"}, {"results": RESULTS[:1]}, {"results": [{"index": 0}]}, {"results": None}])
def test_an_answer_without_a_score_for_each_passage_is_a_broken_contract(answer: object) -> None:
    with pytest.raises(BrokenContract):
        asked("jina:m", answer)[0].rerank("q", ["a", "b"])


def test_no_setting_means_no_reranker_and_a_wrong_one_names_the_cure() -> None:
    assert create(Settings()) is None
    with pytest.raises(Unsupported) as unknown:
        create(Settings(reranker="magic:m"))
    assert "jina" in unknown.value.hint
    with pytest.raises(BadRequest):
        create(Settings(reranker="jina"))
    with pytest.raises(BadRequest):
        create(Settings(reranker="xinference:bge"))
    assert create(Settings(reranker="jina:m:latest")).name == "jina:m:latest"  # type: ignore[union-attr]
