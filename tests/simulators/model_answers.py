"""What the model server answers: vectors, chat, rerank; and what it can be told to get wrong."""

from __future__ import annotations

import binascii
import json
import random
import re
import time
from collections import Counter
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import orjson

from tests.simulators.obeying import obey


@dataclass
class Config:
    """Every value can be given on the command line, to `ModelServer`, or to /_config."""

    dim: int = 1024
    latency_ms: float = 0.0
    """Before an answer; of a stream, before its first piece."""
    latency_per_input_ms: float = 0.0
    pause_ms: float = 0.0
    """Between the pieces of a stream."""
    fail_429_rate: float = 0.0
    fail_500_rate: float = 0.0
    retry_after: str = ""
    """Header of the 429 and 500 answers: seconds or an HTTP date."""
    headers: dict[str, str] = field(default_factory=dict)
    """Further headers of refusals."""
    status: int = 0
    """Answer everything with this status."""
    code: str = ""
    """`error.code` of refusals, e.g. insufficient_quota."""
    key: str = ""
    """When set, requests without it get 401."""
    key_header: str = "authorization"
    """Where `key` is expected; under the default name as a bearer key."""
    garbage: bool = False
    """200 with a body that is not JSON."""
    raw: str = ""
    """200 with exactly this body, of the media type `raw_type`."""
    raw_type: str = "application/json"
    too_few: int = 0
    """Vectors left out of each answer."""
    other_dimension: int = 0
    """Numbers a vector really has, in place of `dim`."""
    nan: bool = False
    zeros: bool = False
    floats_only: bool = False
    """Ignore `encoding_format`."""
    shuffle: bool = False
    """Give the items in reverse order, with their right `index`."""
    no_index: bool = False
    no_usage: bool = False
    hang: bool = False
    """Take the request and never answer."""
    drop: bool = False
    """Close the connection instead of answering."""
    cut_stream: int = 0
    """Close the connection after so many pieces of a stream."""
    keep_log: bool = False
    """Remember when each request came, for /_log."""
    concurrency: int = 0
    """Requests in flight above this number get 429."""
    hangs_on: str = ""
    """Requests with a text that holds this (ASCII) are never answered."""
    chokes_on: str = ""
    """Requests with a text that holds this are answered with 500."""
    mumbles_on: str = ""
    """Requests with a text that holds this are answered with fewer vectors than texts."""
    max_inputs: int = 0
    """More inputs in a request get 400, as providers do."""
    refuse_stream_options: bool = False
    refuse_response_format: str = ""
    """A `response_format` of this type gets 400, as of services that do not know it."""
    answers: list[str] = field(default_factory=list)
    """Chat says these in turn, the last one for ever; empty: quote the first passage."""
    finish_reason: str = "stop"
    obeys: str = ""
    """Chat does what it is told to say: by instructions ``outside`` the frames of passages, or ``everywhere``; see `obeying`."""
    keep_messages: bool = False
    """Remember what chat was sent, for /_messages."""


MIX = np.uint64(0x9E3779B97F4A7C15)
MASKS = np.array([(1 << (8 * n)) - 1 for n in range(8)] + [2**64 - 1], dtype=np.uint64)
# which bytes belong to a word: letters, digits and everything beyond ASCII; a lead byte of three or four begins one of its own
WORD = bytes((b < 128 and chr(b).isalnum()) or b >= 0x80 for b in range(256))
LEAD = 0xE3
TERM = re.compile(r"[a-z0-9]+|[\u4e00-\u9fff]")
PASSAGE = re.compile(r'<passage number="(\d+)"[^\n]*>\n(.*?)\n</passage>', re.DOTALL)


def vectors(texts: list[str], dim: int) -> np.ndarray:
    """Unit rows, shape (len(texts), dim): each word, or pair of Chinese characters, adds to two places of its text's row."""
    raws = [text.encode("utf-8", "replace") for text in texts]
    joined = b" " + b" ".join(raws).lower() + b" " * 9
    data = np.frombuffer(joined, np.uint8)
    inside = np.frombuffer(joined.translate(WORD), np.bool_)
    starts = np.flatnonzero((inside[1:] & ~inside[:-1]) | (data[1:] >= LEAD)) + 1
    borders = np.cumsum(np.fromiter(map(len, raws), np.int64, len(raws)) + 1)
    owner = np.searchsorted(borders, starts, side="right")
    owner = np.minimum(owner, len(texts) - 1)
    # eight bytes at each start, cut at the word's end
    windows = np.ndarray(shape=(len(joined) - 7,), dtype="<u8", buffer=joined, strides=(1,))[starts]
    ends = np.flatnonzero(~inside)
    lengths = ends[np.searchsorted(ends, starts)] - starts
    lengths = np.where(data[starts] >= LEAD, np.minimum(lengths, 6), lengths)
    hashes = (windows & MASKS[np.minimum(lengths, 8)]) * MIX
    hashes ^= hashes >> np.uint64(29)
    hashes *= np.uint64(0xBF58476D1CE4E5B9)
    cells = np.concatenate((owner, owner)) * dim + np.concatenate(
        ((hashes >> np.uint64(40)) % np.uint64(dim), (hashes >> np.uint64(16)) % np.uint64(dim))
    ).astype(np.int64)
    signs = np.concatenate((hashes >> np.uint64(63), (hashes >> np.uint64(62)) & np.uint64(1))).astype(np.float64) * 2 - 1
    rows = np.bincount(cells, weights=signs, minlength=len(texts) * dim).reshape(len(texts), dim).astype(np.float32)
    # a direction that all share keeps texts without words away from zero
    rows[:, 0] += 0.5
    norms = np.sqrt(np.einsum("ij,ij->i", rows, rows))
    rows[norms == 0, 0] = norms[norms == 0] = 1.0
    rows /= norms[:, None]
    return rows


def tokens(texts: list[str]) -> int:
    """A rough count, always the same."""
    return sum(map(len, texts)) // 4 + len(texts)


class State:
    """What all connections share."""

    def __init__(self, config: Config) -> None:
        self.config = config
        self.in_flight = 0
        self.reset()

    def reset(self) -> None:
        self.counts: Counter[str] = Counter()
        self.sizes: Counter[int] = Counter()
        self.roles: Counter[str] = Counter()
        self.most = self.in_flight
        self.slept_s = 0.0
        self.began, self.cpu = time.perf_counter(), time.process_time()
        self.random = random.Random(20251130)
        self.said = 0
        self.last: dict[str, Any] = {}
        self.log: list[tuple[float, str, int]] = []
        self.messages: list[Any] = []

    def stats(self) -> dict[str, Any]:
        names = ("requests", "embed", "chat", "streams", "rerank", "inputs", "tokens", "fail_429", "fail_500", "refused", "connections")
        return {
            **{name: self.counts[name] for name in names},
            "batch_sizes": {str(size): n for size, n in sorted(self.sizes.items())},
            "in_flight": self.in_flight,
            "most_in_flight": self.most,
            "slept_s": round(self.slept_s, 3),
            "elapsed_s": round(time.perf_counter() - self.began, 3),
            "cpu_s": round(time.process_time() - self.cpu, 4),
            "last": self.last,
        }


class Refusal(Exception):
    """An error answer."""

    def __init__(self, status: int, message: str, code: str = "") -> None:
        super().__init__(message)
        self.status, self.code = status, code


REASONS = {200: b"OK", 400: b"Bad Request", 401: b"Unauthorized", 404: b"Not Found", 429: b"Too Many Requests", 500: b"Internal Server Error"}


def head(status: int, length: int, headers: dict[str, str] | None = None, kind: bytes = b"application/json") -> bytes:
    extra = b"".join(b"%s: %s\r\n" % (k.encode(), v.encode()) for k, v in (headers or {}).items())
    return b"HTTP/1.1 %d %s\r\nContent-Type: %s\r\nContent-Length: %d\r\n%s\r\n" % (status, REASONS.get(status, b"-"), kind, length, extra)


def whole(body: bytes) -> list[bytes]:
    return [head(200, len(body)) + body]


def embed(state: State, asked: dict[str, Any]) -> tuple[list[bytes], int]:
    config = state.config
    texts = asked["input"]
    texts = [texts] if isinstance(texts, str) else texts
    if any(not text for text in texts) or not texts:
        raise Refusal(400, "input cannot be an empty string", "invalid_input")
    if config.max_inputs and len(texts) > config.max_inputs:
        raise Refusal(400, "batch size is invalid", "InvalidParameter")
    if config.chokes_on and any(config.chokes_on in text for text in texts):
        raise Refusal(500, "internal error", "internal_error")
    used = tokens(texts)
    state.counts["embed"] += 1
    state.counts["inputs"] += len(texts)
    state.counts["tokens"] += used
    state.sizes[len(texts)] += 1
    rest = {key: value for key, value in asked.items() if key != "input"}
    state.last = {**rest, "characters": [len(text) for text in texts[:256]]}
    rows = vectors(texts, config.other_dimension or asked.get("dimensions") or config.dim)
    if config.nan:
        rows[-1, -1] = np.nan
    if config.zeros:
        rows[-1] = 0.0
    mumbles = bool(config.mumbles_on) and any(config.mumbles_on in text for text in texts)
    order = list(range(len(texts) - min(max(config.too_few, mumbles), len(texts))))
    if config.shuffle:
        order.reverse()
    packed = asked.get("encoding_format") == "base64" and not config.floats_only
    quote = b'"' if packed else b""
    pieces = [b'{"object":"list","model":"stub","data":[']
    for place, i in enumerate(order):
        index = b"" if config.no_index else b'"index":%d,' % i
        pieces.append(b'%s{"object":"embedding",%s"embedding":%s' % (b"," if place else b"", index, quote))
        pieces.append(packed_row(rows[i]) if packed else listed_row(rows[i]))
        pieces.append(quote + b"}")
    usage = b"" if config.no_usage else b',"usage":{"prompt_tokens":%d,"total_tokens":%d}' % (used, used)
    pieces.append(b"]%s}" % usage)
    # joined once: each copy of 128 vectors would cost as much as making them
    return [b"".join((head(200, sum(map(len, pieces))), *pieces))], len(texts)


def packed_row(row: np.ndarray) -> bytes:
    return binascii.b2a_base64(row.data, newline=False)


def listed_row(row: np.ndarray) -> bytes:
    # JSON has no NaN; servers in Python write it all the same
    return orjson.dumps(row, option=orjson.OPT_SERIALIZE_NUMPY) if np.isfinite(row).all() else json.dumps(row.tolist()).encode()


def chat(state: State, asked: dict[str, Any]) -> list[bytes]:
    config = state.config
    streamed = bool(asked.get("stream"))
    if streamed and "stream_options" in asked and config.refuse_stream_options:
        raise Refusal(400, "unknown field stream_options", "unknown_field")
    if config.refuse_response_format and (asked.get("response_format") or {}).get("type") == config.refuse_response_format:
        raise Refusal(400, "this response_format is not supported", "invalid_request_error")
    prompt = "\n".join(str(message.get("content") or "") for message in asked["messages"])
    told = obey(prompt, everywhere=config.obeys == "everywhere") if config.obeys else None
    text = answer_text(state, prompt) if told is None else told
    if config.keep_messages:
        state.messages.append(asked)
    state.counts["chat"] += 1
    state.counts["streams"] += streamed
    state.last = {**{key: value for key, value in asked.items() if key != "messages"}, "roles": [m.get("role") for m in asked["messages"]]}
    usage = {"prompt_tokens": tokens([prompt]), "completion_tokens": tokens([text]), "total_tokens": tokens([prompt]) + tokens([text])}
    base = {"id": "stub-1", "created": 0, "model": asked.get("model", "stub")}
    if not streamed:
        choice = {"index": 0, "finish_reason": config.finish_reason, "message": {"role": "assistant", "content": text}}
        answer = {**base, "object": "chat.completion", "choices": [choice]}
        return whole(orjson.dumps(answer if config.no_usage else {**answer, "usage": usage}))
    base["object"] = "chat.completion.chunk"
    step = max(1, len(text) // 16)
    pieces = [text[at : at + step] for at in range(0, len(text), step)]
    events = [{**base, "choices": [{"index": 0, "delta": {"role": "assistant", "content": piece}, "finish_reason": None}]} for piece in pieces]
    events.append({**base, "choices": [{"index": 0, "delta": {}, "finish_reason": config.finish_reason}]})
    if (asked.get("stream_options") or {}).get("include_usage") and not config.no_usage:
        events.append({**base, "choices": [], "usage": usage})
    lines = [b"data: " + orjson.dumps(event) + b"\n\n" for event in events] + [b"data: [DONE]\n\n"]
    start = b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\nTransfer-Encoding: chunked\r\n\r\n"
    return [start, *(b"%x\r\n%s\r\n" % (len(line), line) for line in lines), b"0\r\n\r\n"]


def answer_text(state: State, prompt: str) -> str:
    if state.config.answers:
        text = state.config.answers[min(state.said, len(state.config.answers) - 1)]
        state.said += 1
        return text
    found = PASSAGE.search(prompt)
    return f"{found[2].strip().splitlines()[0][:300]} [{found[1]}]" if found else "There is no passage."


def rerank(state: State, asked: dict[str, Any]) -> tuple[list[bytes], int]:
    """Jina's and Cohere's form; the score is the share of the question's words that the passage holds."""
    documents = [doc if isinstance(doc, str) else str(doc.get("text", "")) for doc in asked["documents"]]
    wanted = set(TERM.findall(asked["query"].lower()))
    scores = [len(wanted & set(TERM.findall(doc.lower()))) / (len(wanted) or 1) for doc in documents]
    order = sorted(range(len(documents)), key=lambda i: (-scores[i], i))[: asked.get("top_n") or len(documents)]
    state.counts["rerank"] += 1
    state.last = {key: value for key, value in asked.items() if key not in {"query", "documents"}}
    results = [{"index": i, "relevance_score": round(scores[i], 6)} for i in order]
    return whole(orjson.dumps({"model": asked.get("model", "stub"), "results": results, "usage": {"total_tokens": tokens(documents)}})), len(
        documents
    )
