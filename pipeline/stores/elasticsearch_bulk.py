"""Bulk requests in pieces, judged item by item: what is throttled goes again alone, what is refused is named."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import TypedDict, cast

import orjson

from pipeline.errors import RateLimited, TooLarge
from pipeline.stores.elasticsearch_client import Client

PIECE_BYTES = 5_000_000
"""Body of one bulk request; more brings no throughput and costs the server heap."""
PAUSES_S = (0.1, 0.4, 1.6, 5.0)
"""Waits before throttled items are sent again; after the last one the caller's own backoff takes over."""


@dataclass(frozen=True, slots=True)
class Operation:
    """One action of a bulk request."""

    owner: str
    """Document id that an outcome is charged to."""
    lines: bytes
    """Action and source, each ended by a line feed."""


@dataclass(frozen=True, slots=True)
class Refusal:
    """An item that Elasticsearch will not take however often it is sent."""

    operation: Operation
    status: int
    kind: str
    """Elasticsearch's own type of error."""


class Cause(TypedDict, total=False):
    type: str


class Item(TypedDict, total=False):
    status: int
    error: Cause


class BulkAnswer(TypedDict):
    errors: bool
    items: list[dict[str, Item]]


def put(owner: str, row_id: str, source: bytes) -> Operation:
    """Write a record whole, over an older one of the same id."""
    return Operation(owner, _action({"index": {"_id": row_id}}) + source + b"\n")


def put_if(owner: str, row_id: str, source: bytes, *, seen: tuple[int, int] | None) -> Operation:
    """Write a record only over the state (sequence number, primary term) that was read; None: only where there is none."""
    if seen is None:
        return Operation(owner, _action({"create": {"_id": row_id}}) + source + b"\n")
    return Operation(owner, _action({"index": {"_id": row_id, "if_seq_no": seen[0], "if_primary_term": seen[1]}}) + source + b"\n")


def remove(owner: str, row_id: str, *, seen: tuple[int, int] | None = None) -> Operation:
    """Delete a record, only in the state that was read where `seen` is given."""
    action: dict[str, object] = {"_id": row_id}
    if seen is not None:
        action |= {"if_seq_no": seen[0], "if_primary_term": seen[1]}
    return Operation(owner, _action({"delete": action}))


def send(
    client: Client,
    index: str,
    operations: Iterable[Operation],
    *,
    pauses_s: Sequence[float] = PAUSES_S,
    sleep: Callable[[float], None] = time.sleep,
) -> list[Refusal]:
    """Send all, in order, and return what was refused for good; a delete of what is not there is no refusal.

    Raises RateLimited or Unavailable when items are still throttled after the last pause, or the cluster is away.
    Everything is idempotent, so the caller may simply call again.
    """
    refused: list[Refusal] = []
    for piece in _pieces(operations):
        waits = iter(pauses_s)
        while piece:
            piece, last = _once(client, index, piece, refused)
            if piece:
                wait = next(waits, None)
                if wait is None:
                    raise client.failure(last.status, last.kind, f"/{index}/_bulk")
                sleep(wait)
    return refused


def _once(client: Client, index: str, piece: list[Operation], refused: list[Refusal]) -> tuple[list[Operation], Refusal]:
    """Send once; returns the throttled operations, and the last of them as a refusal to tell of."""
    last = Refusal(piece[0], 429, "")
    try:
        answer = cast("BulkAnswer", client.call("POST", f"/{index}/_bulk", b"".join(o.lines for o in piece), params={"require_alias": "true"}))
    except RateLimited:
        return piece, last
    except TooLarge:
        if len(piece) == 1:
            refused.append(Refusal(piece[0], 413, "content_too_long"))
            return [], last
        middle = len(piece) // 2
        first, last = _once(client, index, piece[:middle], refused)
        second, later = _once(client, index, piece[middle:], refused)
        return first + second, later if second else last
    if not answer["errors"]:
        return [], last
    again: list[Operation] = []
    for operation, item in zip(piece, answer["items"], strict=True):
        ((action, result),) = item.items()
        status, kind = result.get("status", 500), result.get("error", {}).get("type", "")
        if status < 300 or (action == "delete" and status == 404 and not kind):
            continue
        outcome = Refusal(operation, status, kind)
        if kind == "index_not_found_exception" or kind == "cluster_block_exception":
            raise client.failure(status, kind, f"/{index}/_bulk")
        if status == 429 or status >= 500:
            again.append(operation)
            last = outcome
        else:
            refused.append(outcome)
    return again, last


def _pieces(operations: Iterable[Operation]) -> Iterator[list[Operation]]:
    piece: list[Operation] = []
    size = 0
    for operation in operations:
        if piece and size + len(operation.lines) > PIECE_BYTES:
            yield piece
            piece, size = [], 0
        piece.append(operation)
        size += len(operation.lines)
    if piece:
        yield piece


def _action(action: dict[str, dict[str, object]] | dict[str, dict[str, str]]) -> bytes:
    return orjson.dumps(action) + b"\n"
