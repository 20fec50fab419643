"""Embeddings from any service that speaks OpenAI's protocol.

Asks for base64, because parsing numbers costs more than everything else together, and takes numbers where a
service knows no better. Lengths are counted in the configured tokenizer, so for other models they are estimates;
the rows of `providers` leave room for that.
"""

from __future__ import annotations

import binascii
import threading
from collections.abc import Iterator, Sequence
from concurrent.futures import CancelledError, Future, ThreadPoolExecutor
from dataclasses import dataclass, replace
from typing import TypeAlias, cast

import numpy as np

from pipeline import identity, pricing, registry
from pipeline.contracts import EmbeddedChunks, Vectors
from pipeline.embed.providers import PROVIDERS, Provider, max_tokens, prefixes
from pipeline.errors import BadRequest, BrokenContract, Garbled, PipelineError
from pipeline.http import Client, error_word, shown
from pipeline.protocols import EmbedderProfile, Limiter, Service, Unlimited
from pipeline.settings import Settings

SETTING = "DUJIANG_EMBEDDER"
CHECK = f"Check the model and the server behind {SETTING}_BASE_URL."
VERSION = 1
"""Raise it when this module would send other text for the same chunk."""

# API embedders rank well by themselves, so full text only breaks ties: docs/decisions, weights per profile
_LEXICAL_WEIGHT = 0.05
_REFUSE_BELOW = 0.30

QUERY_PATIENCE_S = 5.0
"""Somebody waits for the answer to a question: rather a little later than not at all."""

Sent: TypeAlias = tuple[Vectors, int | None]
"""The vectors of one request, and the tokens billed for it."""


def profile(settings: Settings) -> EmbedderProfile:
    """What is known before the first answer. Raises Unsupported for an unknown provider."""
    name, model = registry.split(settings.embedder)
    provider = _provider(name)
    before_query, before_passage = prefixes(model)
    revision = identity.fingerprint(
        {
            "version": VERSION,
            "provider": name,
            "model": model,
            "dimension": settings.embedder_dimension,
            "max_tokens": max_tokens(provider, model),
            "tokenizer": settings.tokenizer,
            "prefixes": (before_query, before_passage),
            "roles": (provider.query_role, provider.passage_role),
        }
    )
    price = pricing.load(settings.prices).of(f"{name}:{model}")
    return EmbedderProfile(
        name=f"{name}:{model}",
        revision=revision[:12],
        dimension=settings.embedder_dimension or None,
        max_tokens=max_tokens(provider, model),
        batch_size=provider.batch_size,
        batch_tokens=provider.batch_tokens,
        lexical_weight=_LEXICAL_WEIGHT,
        refuse_below=_REFUSE_BELOW,
        in_process=False,
        price=price.input if price else None,
        currency=price.currency if price else "",
    )


def build(settings: Settings, limiter: Limiter | None = None) -> OpenAIEmbedder:
    """An embedder for ``provider:MODEL``; connects at first use.

    Raises BadRequest when the provider has no address of its own and the settings name none.
    """
    name, _ = registry.split(settings.embedder)
    provider = _provider(name)
    client = Client(
        _address(name, provider, settings),
        api_key=settings.embedder_api_key,
        timeout_s=settings.request_timeout_s,
        service=name,
        setting=SETTING,
        key_header=provider.key_header,
    )
    known = profile(settings)
    in_flight = min(settings.worker_threads, settings.embedder_concurrency or settings.worker_threads)
    return OpenAIEmbedder(
        client, provider, known, dimension=settings.embedder_dimension, tokenizer=settings.tokenizer, in_flight=in_flight, limiter=limiter
    )


def service(settings: Settings) -> Service:
    """Whose limits count, and which. Raises like `build`."""
    name, _ = registry.split(settings.embedder)
    provider = _provider(name)
    address = _address(name, provider, settings)
    return Service(
        part="embedder",
        provider=name,
        shown=f"{name} at {shown(address)}",
        credential=f"{address} {settings.embedder_api_key}",
        rps=settings.embedder_rps or provider.rps,
        tpm=settings.embedder_tpm,
        concurrency=settings.embedder_concurrency,
    )


def _address(name: str, provider: Provider, settings: Settings) -> str:
    address = settings.embedder_base_url or provider.base_url
    if not address:
        raise BadRequest(f"the embedder {name!r} needs an address", hint=f"Set {SETTING}_BASE_URL.", code="bad_setting")
    return address


def _provider(name: str) -> Provider:
    registry.find(dict.fromkeys(PROVIDERS, "pipeline.embed.openai:build"), name, what="embedder")
    return PROVIDERS[name]


@dataclass(slots=True)
class _Input:
    text: str
    tokens: int
    exact: bool
    """False while `tokens` is the number of bytes, which no tokenizer exceeds."""


class OpenAIEmbedder:
    """One model at one service. Vectors are given back with length 1, whatever the service's were."""

    def __init__(
        self,
        client: Client,
        provider: Provider,
        known: EmbedderProfile,
        *,
        dimension: int = 0,
        tokenizer: str = "cl100k_base",
        in_flight: int = 1,
        limiter: Limiter | None = None,
    ) -> None:
        self._client = client
        self._limiter = limiter or Unlimited()
        self._in_flight = in_flight
        self._senders: ThreadPoolExecutor | None = None
        self._provider = provider
        self._profile = known
        self._asked_dimension = dimension
        self._tokenizer = tokenizer
        self._model = registry.split(known.name)[1]
        self._prefixes = prefixes(self._model)
        self._lock = threading.Lock()

    @property
    def profile(self) -> EmbedderProfile:
        """`dimension` is filled in by the first answer."""
        return self._profile

    def encode(self, texts: Sequence[str]) -> EmbeddedChunks:
        """Embed passages; see the protocol."""
        return self._whole(self.pieces(texts))

    def encode_queries(self, texts: Sequence[str]) -> EmbeddedChunks:
        """Embed questions; see the protocol."""
        return self._whole(self._pieces(texts, self._prefixes[0], self._provider.query_role, QUERY_PATIENCE_S))

    def pieces(self, texts: Sequence[str]) -> Iterator[tuple[int, EmbeddedChunks]]:
        """Embed passages, request by request; see the protocol."""
        return self._pieces(texts, self._prefixes[1], self._provider.passage_role, 1.0)

    def close(self) -> None:
        """Close kept connections."""
        if self._senders is not None:
            self._senders.shutdown(cancel_futures=True)
        self._client.close()

    def _whole(self, pieces: Iterator[tuple[int, EmbeddedChunks]]) -> EmbeddedChunks:
        parts = [piece for _, piece in pieces]
        if len(parts) == 1:
            return parts[0]
        if not parts:
            return EmbeddedChunks(np.zeros((0, self._profile.dimension or 0), np.float32), self._profile.name, self._profile.revision, 0)
        tokens: int | None = 0
        for part in parts:
            tokens = None if tokens is None or part.tokens is None else tokens + part.tokens
        return replace(parts[0], vectors=np.concatenate([part.vectors for part in parts]), tokens=tokens, requests=len(parts))

    def _pieces(self, texts: Sequence[str], prefix: str, role: str, patience_s: float) -> Iterator[tuple[int, EmbeddedChunks]]:
        """In order. Several requests go out at once, at most `in_flight` over all callers; what is still waiting when one fails is not sent."""
        batches = list(self._batches(texts, prefix))
        start = 0
        failed: PipelineError | None = None
        sent = self._senders_of().submit if len(batches) > 1 and self._in_flight > 1 else None
        futures = [sent(self._request, batch, role, patience_s) for batch in batches] if sent else []
        for place, batch in enumerate(batches):
            try:
                vectors, tokens = futures[place].result() if futures else self._request(batch, role, patience_s)
                yield start, EmbeddedChunks(vectors, self._profile.name, self._profile.revision, tokens, requests=1)
            except CancelledError:
                pass
            except PipelineError as error:
                failed = failed or error
                if not futures:
                    break
                _call_off(futures)
            except BaseException:
                _call_off(futures)
                raise
            start += len(batch)
        if failed is not None:
            raise failed

    def _senders_of(self) -> ThreadPoolExecutor:
        with self._lock:
            if self._senders is None:
                self._senders = ThreadPoolExecutor(self._in_flight, thread_name_prefix="embed")
            return self._senders

    def _batches(self, texts: Sequence[str], prefix: str) -> Iterator[list[str]]:
        """Full requests within both bounds; bytes stand for tokens until they do not fit, then those inputs are counted."""
        batch: list[_Input] = []
        total = 0
        for text in texts:
            one = self._input(text, prefix)
            full = len(batch) == self._profile.batch_size
            if batch and not full and total + one.tokens > self._profile.batch_tokens:
                for each in (*batch, one):
                    self._count(each)
                total = sum(each.tokens for each in batch)
                full = total + one.tokens > self._profile.batch_tokens
            if full:
                yield [each.text for each in batch]
                batch, total = [], 0
            batch.append(one)
            total += one.tokens
        if batch:
            yield [each.text for each in batch]

    def _input(self, text: str, prefix: str) -> _Input:
        text = f"{prefix}{text}" if prefix else text
        if not text.isascii():
            # half of a surrogate pair cannot be sent as JSON
            text = text.encode("utf-8", "replace").decode("utf-8")
        size = len(text) if text.isascii() else len(text.encode("utf-8"))
        limit = self._profile.max_tokens
        if size <= limit:
            return _Input(text or " ", size, exact=False)
        from pipeline import tokens

        cut = tokens.cut(text, limit, self._tokenizer)
        return _Input(cut, limit, exact=True) if len(cut) < len(text) else _Input(text, size, exact=False)

    def _count(self, one: _Input) -> None:
        if one.exact:
            return
        from pipeline import tokens

        one.tokens, one.exact = tokens.count(one.text, self._tokenizer), True

    def _request(self, batch: list[str], role: str, patience_s: float) -> Sent:
        import orjson

        provider = self._provider
        body: dict[str, object] = {"model": self._model, "input": batch}
        if provider.base64:
            body[provider.format_key] = "base64"
        if self._asked_dimension:
            body[provider.dimension_key] = self._asked_dimension
        if role:
            body[provider.role_key] = role
        with self._limiter.request(tokens=sum(map(_about, batch)), patience_s=patience_s) as permit:
            answer = self._client.post_json("embeddings", orjson.dumps(body))
            try:
                found: object = orjson.loads(answer)
            except orjson.JSONDecodeError:
                raise self._garbled(f"an answer of {len(answer)} bytes that is not JSON") from None
            vectors, used = self._read(found, len(batch))
            permit.used(used)
        self._check_dimension(vectors.shape[1])
        return self._unit(vectors), used

    def _read(self, found: object, wanted: int) -> Sent:
        """The matrix in the order of the inputs, shape (wanted, d), and the tokens billed."""
        if not isinstance(found, dict):
            raise self._garbled("an answer that is no JSON object")
        table = cast("dict[str, object]", found)
        rows = table.get("data")
        if not isinstance(rows, list):
            code = error_word(table) if "error" in table else ""
            raise self._garbled("an answer without vectors" + (f" ({code})" if code else ""))
        items = cast("list[object]", rows)
        if len(items) != wanted:
            raise self._garbled(f"{len(items)} vectors for {wanted} inputs")
        usage = table.get("usage")
        used: int | None = None
        if isinstance(usage, dict):
            counts = cast("dict[str, object]", usage)
            total = counts.get("total_tokens", counts.get("prompt_tokens"))
            used = total if isinstance(total, int) and not isinstance(total, bool) else None
        return self._matrix(self._ordered(items)), used

    def _ordered(self, items: list[object]) -> list[object]:
        """The `embedding` fields in the order of `index`; in the order given when no item has one."""
        ordered: list[object] = [None] * len(items)
        taken = 0
        for place, item in enumerate(items):
            if not isinstance(item, dict):
                raise self._garbled(f"item {place} of an answer that is no JSON object")
            row = cast("dict[str, object]", item)
            index = row.get("index", place)
            if not isinstance(index, int) or not 0 <= index < len(items) or ordered[index] is not None:
                raise self._garbled(f"an index that is repeated or outside the {len(items)} inputs")
            ordered[index] = row.get("embedding")
            taken += ordered[index] is not None
        if taken != len(items):
            raise self._garbled(f"{len(items) - taken} items without a vector")
        return ordered

    def _matrix(self, rows: list[object]) -> Vectors:
        if all(isinstance(row, str) for row in rows):
            try:
                packed = [binascii.a2b_base64(row) for row in cast("list[str]", rows)]
            except (binascii.Error, ValueError):
                raise self._garbled("a vector that is not base64") from None
            sizes = {len(piece) for piece in packed}
            if len(sizes) != 1 or 0 in sizes or next(iter(sizes)) % 4:
                raise self._garbled(f"vectors of {sorted(sizes)[:3]} bytes in one answer")
            flat = np.frombuffer(b"".join(packed), dtype="<f4")
            return cast("Vectors", flat.reshape(len(rows), -1).astype(np.float32))
        try:
            matrix = np.array(rows, dtype=np.float32)
        except (TypeError, ValueError):
            raise self._garbled("vectors that are not equal rows of numbers") from None
        if matrix.ndim != 2 or not matrix.shape[1]:
            raise self._garbled("vectors that are not rows of numbers")
        return matrix

    def _check_dimension(self, dimension: int) -> None:
        with self._lock:
            expected = self._profile.dimension
            if expected is None:
                self._profile = replace(self._profile, dimension=dimension)
                return
        if dimension != expected:
            raise self._broken(
                f"vectors of {dimension} numbers where {expected} are expected",
                hint=f"Set {SETTING}_DIMENSION to what the model gives, or make the collection anew for another model.",
            )

    def _unit(self, vectors: Vectors) -> Vectors:
        """Scale to length 1 in place."""
        norms = np.sqrt(np.einsum("ij,ij->i", vectors, vectors, dtype=np.float64))
        if not np.isfinite(norms).all():
            raise self._broken("a vector with NaN or infinite numbers")
        if not norms.all():
            raise self._broken("a vector of zeros")
        vectors /= norms[:, None].astype(np.float32)
        return vectors

    def _broken(self, what: str, *, hint: str = CHECK) -> BrokenContract:
        return BrokenContract(self._sent(what), hint=hint, code="bad_vectors")

    def _garbled(self, what: str) -> Garbled:
        return Garbled(self._sent(what), hint=CHECK, code="bad_vectors")

    def _sent(self, what: str) -> str:
        return f"{self._client.service} at {self._client.address} sent {what} (model {self._model})"


def _about(text: str) -> int:
    """Tokens of a text, by its length: good enough to be corrected by what the service counts."""
    return len(text) // 4 + 1 if text.isascii() else len(text)


def _call_off(futures: Sequence[Future[Sent]]) -> None:
    for future in futures:
        future.cancel()
