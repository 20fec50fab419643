"""Rerankers over HTTP: four providers' request shapes, one answer shape.

`retrieve` takes whatever `create` gives, and keeps its own order when a call fails.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol, cast

import orjson

from pipeline.contracts import Usage
from pipeline.errors import BadRequest, BrokenContract, Unsupported
from pipeline.http import shown
from pipeline.pricing import Price, load
from pipeline.protocols import Limiter, Reranker, Service, Unlimited
from pipeline.registry import split
from pipeline.settings import Settings

LONGEST_PASSAGE = 4_000
"""Characters of a passage that are sent: every provider cuts, and some refuse instead."""
PATIENCE_S = 1.0
"""Somebody waits for the answer, and without a reranker there is one, too."""


class Poster(Protocol):
    """The part of `http.Client` that is used."""

    def post_json(self, path: str, body: bytes) -> bytes: ...


@dataclass(frozen=True, slots=True)
class Provider:
    """How one provider wants to be asked."""

    base_url: str
    """Empty: there is no public one, it must be configured."""
    path: str
    body: Callable[[str, str, list[str]], Mapping[str, object]]
    """(model, question, passages) → JSON body asking for a score of every passage."""


def _flat(model: str, question: str, passages: list[str]) -> Mapping[str, object]:
    return {"model": model, "query": question, "documents": passages, "top_n": len(passages)}


def _bare(model: str, question: str, passages: list[str]) -> Mapping[str, object]:
    return {**_flat(model, question, passages), "return_documents": False}


def _nested(model: str, question: str, passages: list[str]) -> Mapping[str, object]:
    parameters = {"top_n": len(passages), "return_documents": False}
    return {"model": model, "input": {"query": question, "documents": passages}, "parameters": parameters}


def providers() -> Mapping[str, Provider]:
    """Name → how to ask it."""
    return {
        "jina": Provider("https://api.jina.ai/v1", "rerank", _bare),
        "cohere": Provider("https://api.cohere.com/v2", "rerank", _flat),
        "dashscope": Provider("https://dashscope.aliyuncs.com/api/v1", "services/rerank/text-rerank/text-rerank", _nested),
        "xinference": Provider("", "rerank", _bare),
    }


class HttpReranker:
    """One model at one provider. Safe to call from several threads when its client is."""

    def __init__(
        self,
        name: str,
        model: str,
        client: Poster,
        *,
        path: str,
        body: Callable[[str, str, list[str]], Mapping[str, object]],
        limiter: Limiter | None = None,
        price: Price | None = None,
    ) -> None:
        self.name = name
        self._model = model
        self._client = client
        self._path = path
        self._body = body
        self._limiter = limiter or Unlimited()
        self._price = price

    def rerank(self, question: str, passages: Sequence[str]) -> list[float]:
        return self.score(question, passages)[0]

    def score(self, question: str, passages: Sequence[str]) -> tuple[list[float], Usage]:
        """The same, with what the provider says it cost.

        Scores outside [0, 1] are taken for logits, and the whole list goes through the logistic function.
        Raises: the client's errors, and BrokenContract when a passage has no score.
        """
        if not passages:
            return [], Usage()
        sent = [passage[:LONGEST_PASSAGE] for passage in passages]
        body = orjson.dumps(self._body(self._model, question, sent))
        with self._limiter.request(tokens=_about(question, sent), patience_s=PATIENCE_S) as permit:
            scores, usage = self._read(self._client.post_json(self._path, body), len(sent))
            permit.used(usage.total_tokens)
        if any(not 0.0 <= score <= 1.0 for score in scores):
            scores = [1.0 / (1.0 + math.exp(-min(max(score, -60.0), 60.0))) for score in scores]
        return scores, self._price.of(usage) if self._price else usage

    def _read(self, raw: bytes, number: int) -> tuple[list[float], Usage]:
        try:
            answer = cast("Mapping[str, Any]", orjson.loads(raw))
            results = answer["output"]["results"] if "output" in answer else answer["results"]
            found = {int(result["index"]): float(result["relevance_score"]) for result in results}
            scores = [found[at] for at in range(number)]
        except (ValueError, KeyError, TypeError) as error:
            raise BrokenContract(f"reranker {self.name} did not give one score for each of {number} passages") from error
        if not all(map(math.isfinite, scores)):
            raise BrokenContract(f"reranker {self.name} gave a score that is no number")
        return scores, _usage(answer)


def create(settings: Settings, client: Poster | None = None, limiter: Limiter | None = None) -> Reranker | None:
    """The reranker that `settings.reranker` names as ``provider:MODEL``; None when there is none.

    Args:
        client: sends the requests; one of our own when None.
        limiter: for its `service`.
    Raises: Unsupported for an unknown provider, BadRequest when the model or a needed address is missing.
    """
    if not settings.reranker:
        return None
    name, model, provider, base = _place(settings)
    path, body = provider.path, provider.body
    if name == "dashscope" and "/compatible-" in base:
        path, body = "reranks", _flat
    if client is None:
        from pipeline.http import Client

        client = Client(base, api_key=settings.reranker_api_key, timeout_s=settings.request_timeout_s, service=name, setting="DUJIANG_RERANKER")
    return HttpReranker(settings.reranker, model, client, path=path, body=body, limiter=limiter, price=load(settings.prices).of(settings.reranker))


def service(settings: Settings) -> Service | None:
    """Whose limits count, and which; None when there is no reranker. Raises like `create`."""
    if not settings.reranker:
        return None
    name, _, _, base = _place(settings)
    return Service(
        part="reranker",
        provider=name,
        shown=f"{name} at {shown(base)}",
        credential=f"{base} {settings.reranker_api_key}",
        rps=settings.reranker_rps,
        tpm=settings.reranker_tpm,
        concurrency=settings.reranker_concurrency,
    )


def _place(settings: Settings) -> tuple[str, str, Provider, str]:
    """(provider's name, model, how to ask it, address)."""
    name, model = split(settings.reranker)
    known = providers()
    provider = known.get(name)
    if provider is None:
        raise Unsupported(f"unknown reranker {name!r}", hint=f"Use one of: {', '.join(sorted(known))}.", code="unknown_reranker")
    if not model:
        raise BadRequest(f"DUJIANG_RERANKER names no model: {name!r}", hint=f"Write it as {name}:MODEL.", code="bad_setting")
    base = settings.reranker_base_url or provider.base_url
    if not base:
        raise BadRequest(f"reranker {name} has no address", hint="Set DUJIANG_RERANKER_BASE_URL, e.g. http://host:9997/v1.", code="bad_setting")
    return name, model, provider, base


def _about(question: str, passages: Sequence[str]) -> int:
    """Tokens that a provider will count, by length: it reads the question with every passage."""
    return sum(len(text) // 4 + 1 if text.isascii() else len(text) for text in (*passages, *[question] * len(passages)))


def _usage(answer: Mapping[str, Any]) -> Usage:
    """Jina, DashScope and Xinference report tokens; Cohere only what it bills, which is no token."""
    meta = answer.get("meta")
    reported = answer.get("usage") or (meta.get("tokens") if isinstance(meta, dict) else None)  # pyright: ignore[reportUnknownMemberType, reportUnknownVariableType]
    if not isinstance(reported, dict):
        return Usage(requests=1)
    figures = cast("Mapping[str, object]", reported)
    total, prompt = figures.get("total_tokens"), figures.get("prompt_tokens", figures.get("input_tokens"))
    whole = total if isinstance(total, int) else prompt if isinstance(prompt, int) else None
    return Usage(prompt_tokens=prompt if isinstance(prompt, int) else whole, total_tokens=whole, requests=1)
