"""Who works: the shape of every replaceable part. Implementations are found through `registry`."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Protocol, runtime_checkable

from pipeline.contracts import (
    Chunk,
    CollectionSpec,
    Completion,
    EmbeddedChunks,
    Hit,
    IndexedDocument,
    ParsedDocument,
    RawDocument,
    Section,
    SourceItem,
    Span,
    StoreAudit,
    StoreQuery,
    Vectors,
)
from pipeline.contracts.sources import Json, ScanEvent, SourceCheck
from pipeline.records import GraphRecords as GraphRecords
from pipeline.records import HoldsGraph as HoldsGraph


class Surroundings(Protocol):
    """What a connector is given instead of reaching for it: a clock, waiting, limits and a store that all workers share."""

    def now(self) -> float:
        """Seconds since the epoch."""
        ...

    def sleep(self, seconds: float) -> None:
        """Wait inside a scan. Raises Cancelled when the run was stopped meanwhile."""
        ...

    def check(self) -> None:
        """Raises Cancelled when the run was stopped. Called between requests."""
        ...

    def acquire(self, route: str, *, rate: float, burst: float, slots: int = 0) -> AbstractContextManager[None]:
        """Permission for one request on a route of this source, shared by all workers: `rate` requests a second, `slots` at once (0: any).

        A route that begins with ``//`` is a host's, and shared by all sources of this kind.
        Raises RateLimited with the time to wait when that is longer than a moment.
        """
        ...

    def blocked(self, route: str, seconds: float) -> None:
        """The source said 429: nobody asks on this route for so long."""
        ...

    def shared(self, name: str, make: Callable[[], tuple[str, float]], *, stale: str = "") -> str:
        """A value all workers share (an access token), made by one of them: `make` gives it with its life in seconds.

        With `stale` the stored value is replaced if it still is that one.
        """
        ...

    def remembered(self) -> Iterator[tuple[str, str]]:
        """Everything that `remember` kept for this source, in no order."""
        ...

    def remember(self, notes: Mapping[str, str | None]) -> None:
        """Keep what is too much for a mark, from one scan to the next and over crashes: key (64 characters) → text, None to drop it."""
        ...


class Permit(Protocol):
    """One request that is under way."""

    def used(self, tokens: int | None) -> None:
        """What the service counted, in place of the estimate; None when it did not say."""
        ...


class Limiter(Protocol):
    """Keeps the requests of all processes to one service within its limits, and away from it while it is blocked or down."""

    def request(self, *, tokens: int = 0, patience_s: float = 1.0) -> AbstractContextManager[Permit]:
        """Permission for one request, which is made inside the block: how the block ends tells all others how the service is.

        Args:
            tokens: an estimate of what the service will count.
            patience_s: sleep at most so long for permission.
        Raises: RateLimited, QuotaExhausted or Unavailable with the time to wait, when that is longer; nothing was sent then.
        """
        ...


class Unlimited:
    """A limiter, and a permit, that lets everything pass."""

    def request(self, *, tokens: int = 0, patience_s: float = 1.0) -> AbstractContextManager[Permit]:
        return nullcontext(self)

    def used(self, tokens: int | None) -> None:
        pass


@dataclass(frozen=True, slots=True)
class Service:
    """A service as its limits see it: requests are counted together where `part`, `provider` and `credential` are the same."""

    part: str
    """What it is to us: ``embedder``, ``llm``, ``reranker``, ``store``."""
    provider: str
    shown: str
    """What messages call it, with its address and without secrets."""
    credential: str = field(default="", repr=False)
    """Address and key. Leaves this process as a hash only."""
    rps: float = 0.0
    """Requests a second; 0: any."""
    tpm: int = 0
    """Tokens a minute; 0: any."""
    concurrency: int = 0
    """Requests at once; 0: any."""


class Connector(Protocol):
    """Authenticates, lists and downloads. Never parses. Made anew for every run from a `SourceSpec` and its `Surroundings`.

    Optional methods, found by name: ``probe(keys) -> Mapping[str, Presence]`` asks for single items, ``decode_hint(headers, body) -> list[str]``
    turns an event of the source into the keys to look at (header names in lower case; raises Forbidden when the event is not genuine), and
    ``answer_hint(headers, body) -> bytes`` gives the JSON that the source wants to hear back.
    """

    def validate(self) -> list[SourceCheck]:
        """Try the credentials and name what is missing. Raises Retryable when the source does not answer."""
        ...

    def scan(self, checkpoint: Json) -> Iterator[ScanEvent]:
        """List what the source holds now, from a mark (empty: from the start). After a crash it may repeat items, never skip any.

        A scan that has ended is not taken up again: the next one gets an empty mark, or ``{"since": …}`` alone where the last mark had that key,
        for connectors that list changes only and say so by `ScopeDone.delta`.

        A scope that cannot be listed is a `ScopeFailed`, not an exception. Raises Unauthorised when nothing can be asked at all, Retryable
        when it shall be taken up from the last mark later, Cancelled.
        """
        ...

    def fetch(self, item: SourceItem) -> RawDocument:
        """Download one item; idempotent. Raises Unchanged, Gone, Forbidden, Unsupported, TooLarge, Malformed, Retryable."""
        ...


class Parser(Protocol):
    """Turns the bytes of one format into text with positions."""

    def __call__(self, raw: RawDocument, options: Mapping[str, str]) -> ParsedDocument:
        """Parse. Raises Malformed, Unsupported, TooLarge. `options` holds e.g. ``pages`` ("1-3,7")."""
        ...


class Chunker(Protocol):
    """Cuts a parsed document into verbatim slices. A chunker declares what it drops in `drops`."""

    drops: str
    """What of the document stands in no chunk, in words; empty when nothing is left out."""

    def __call__(self, document: ParsedDocument, document_id: str) -> tuple[Chunk, ...]:
        """Cut. `words` and `grams` are still empty: `chunk.chunk` fills them."""
        ...


@dataclass(frozen=True, slots=True)
class EmbedderProfile:
    """What the rest of the house must know of an embedder."""

    name: str
    """As configured, e.g. ``openai:text-embedding-3-small`` or ``local``."""
    revision: str
    """Changes whenever the same text would get another vector."""
    dimension: int | None
    """None until the provider has answered once."""
    max_tokens: int
    """Longest input; longer texts are cut there."""
    batch_size: int
    """Most inputs a request."""
    batch_tokens: int
    """Most tokens a request."""
    lexical_weight: float
    """Share of full text in hybrid retrieval: 0.05 for strong API embedders, 0.5 for the local default."""
    refuse_below: float
    """Default refusal threshold of the evidence score, in [0, 1]."""
    in_process: bool
    """True when it computes here (processes), False when it waits for a network (threads)."""
    price: float | None = None
    """For a million tokens, in `currency`; None: not known."""
    currency: str = ""


class Embedder(Protocol):
    """Text to vectors. Safe to call from several threads."""

    @property
    def profile(self) -> EmbedderProfile: ...

    def encode(self, texts: Sequence[str]) -> EmbeddedChunks:
        """Embed passages, shape (len(texts), d), in order; splits into requests by the profile's bounds itself.

        Raises RateLimited, Unavailable, Unauthorised, or BrokenContract on a wrong count, dimension or a NaN.
        """
        ...

    def encode_queries(self, texts: Sequence[str]) -> EmbeddedChunks:
        """The same for questions, where the model tells the two apart."""
        ...


@dataclass(frozen=True, slots=True)
class WriteOutcome:
    """What became of one document in `Store.write`."""

    document_id: str
    version: int
    written: bool
    """False when the store already shows a newer version."""
    chunks: int


class DocumentText(Protocol):
    """Serves a document's text at question time; nothing in `pipeline` reads artifacts for that."""

    def text(self, collection: str, document_id: str, start: int = 0, end: int | None = None) -> str:
        """The visible version's parsed text between two offsets. Raises NotFound."""
        ...

    def sections(self, collection: str, document_id: str, start: int = 0, end: int | None = None) -> tuple[Section, ...]:
        """The sections that touch the span. Raises NotFound."""
        ...


@runtime_checkable
class Piecewise(Protocol):
    """An embedder whose answer comes in pieces, so that a request that fails takes none of the others' vectors with it."""

    def pieces(self, texts: Sequence[str]) -> Iterator[tuple[int, EmbeddedChunks]]:
        """(place of its first text, vectors) of each request that was answered. Raises like `encode`, after the last of them."""
        ...


NO_FENCE: Mapping[str, int] = MappingProxyType({})


class Store(DocumentText, Protocol):
    """Text, vectors and metadata of collections. `collection` is a `CollectionSpec.name`.

    Every write is an upsert; a document is visible whole or not at all; the highest version wins.
    Raises Unavailable(dependency=True) when the backend is away.
    """

    def ensure(self, spec: CollectionSpec) -> None:
        """Create the collection where it is missing. Raises Conflict when it exists with another dimension."""
        ...

    def write(self, collection: str, documents: Sequence[IndexedDocument]) -> list[WriteOutcome]:
        """Make each document's version visible, retire older ones, then delete them. Repeating it changes nothing.

        Raises BrokenContract when a vector's dimension is not the collection's, or a count differs.
        """
        ...

    def delete(self, collection: str, document_ids: Sequence[str], *, fence: Mapping[str, int] = NO_FENCE) -> int:
        """Remove documents whole; returns how many existed. Unknown ids are no error.

        Args:
            fence: document id → version: only a higher one may be written from now on, whether the document was there or not,
                and a higher one that is there already stays. A writer that comes late cannot bring a deleted document back.
        """
        ...

    def search(self, collection: str, query: StoreQuery) -> list[Hit]:
        """Candidates of the lexical and the semantic side, united, with both scores; best first, ties by (key, ordinal)."""
        ...

    def chunks(self, collection: str, places: Sequence[tuple[str, int]], limits: StoreQuery) -> list[Hit]:
        """The chunks at (document id, ordinal) of visible versions, in that order, without scores.

        What is not there, or not let through by the filters and `as_of` of `limits`, is left out.
        """
        ...

    def frequencies(self, collection: str, terms: Sequence[str]) -> tuple[int, Mapping[str, int]]:
        """(number of chunks, chunks holding each term) over `Chunk.words` and `Chunk.grams`; for idf and pruning."""
        ...

    def vectors(self, collection: str, document_id: str) -> tuple[tuple[str, ...], Vectors]:
        """Hash of `search_text` and vector of each chunk of the visible version; empty when unknown."""
        ...

    def document(self, collection: str, document_id: str) -> ParsedDocument:
        """The visible version's parsed text with sections and tables. Raises NotFound."""
        ...

    def spans(self, collection: str, document_id: str) -> tuple[tuple[str, Span], ...]:
        """(chunk id, span) of each chunk of the visible version, in order."""
        ...

    def audit(self, collection: str) -> StoreAudit:
        """Count and hash what is really there."""
        ...

    def versions(self, collection: str) -> Mapping[str, int]:
        """Document id → visible version, without reading the documents. Raises NotFound."""
        ...

    def collections(self) -> list[str]:
        """Names of the collections that are there, in order."""
        ...

    def expunge(self, collection: str) -> None:
        """Rewrite what still holds bytes of removed documents; may take as long as writing the text index anew. Unknown names are no error."""
        ...

    def drop(self, collection: str) -> None:
        """Remove the collection with all it holds. Unknown names are no error."""
        ...

    def close(self) -> None: ...


class Reranker(Protocol):
    """Orders hits anew by reading question and passage together."""

    name: str

    def rerank(self, question: str, passages: Sequence[str]) -> list[float]:
        """A score in [0, 1] for each passage, in order. Raises Retryable; the caller keeps the old order and says so."""
        ...


@dataclass(frozen=True, slots=True)
class Generation:
    """Generation settings; None leaves the provider's default."""

    temperature: float | None = None
    top_p: float | None = None
    max_tokens: int | None = None
    schema: Mapping[str, object] | None = None
    """JSON schema of the answer; a service that cannot keep to one is asked without."""


class LLM(Protocol):
    """A reader. Safe to call from several threads."""

    name: str
    """As configured, e.g. ``openai:qwen-plus`` or ``extractive``."""
    revision: str

    def complete(self, messages: Sequence[tuple[str, str]], options: Generation) -> Completion:
        """Answer in one piece. Raises RateLimited, Unavailable, Unauthorised, BrokenContract."""
        ...

    def stream(self, messages: Sequence[tuple[str, str]], options: Generation) -> Iterator[str | Completion]:
        """Yield pieces of text, then the whole Completion last."""
        ...


class Cache(Protocol):
    """Keyed answers. Losing it costs time only; every key has an expiry."""

    def get(self, key: str) -> bytes | None: ...

    def put(self, key: str, value: bytes, *, ttl_s: float, group: str = "") -> None:
        """Keep `value`; `group` (a collection) can be purged as one."""
        ...

    def purge(self, group: str) -> int:
        """Forget a group; returns how many keys went."""
        ...

    def flight(self, key: str, *, wait_s: float) -> AbstractContextManager[bool]:
        """Single flight over processes: True for the one who computes, False for those who waited for it."""
        ...
