"""What a question may be given beside its text; the same for the command line, Python and HTTP."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, TypedDict


@dataclass(frozen=True, slots=True)
class Asking:
    """Options of search and ask; `filters` are conditions as text (``year>=2020``)."""

    collections: Sequence[str] = ()
    """Empty: all there are."""
    mode: str = "hybrid"
    """hybrid, participle (keyword), semantic, graph."""
    k: int | None = None
    """None: as many as the collection is set to, 10 where it is not."""
    score_threshold: float | None = None
    filters: Sequence[str] = ()
    as_of: str = ""
    """ISO 8601 with a time zone."""
    trace: bool | None = None
    """Each step with its time and what was lost. None: with a search, not with an answer."""
    history: Sequence[tuple[str, str]] = ()
    """(role, text) of earlier turns; only for ask."""
    system: str = ""
    temperature: float | None = None
    top_p: float | None = None
    max_tokens: int | None = None
    merge: str = ""
    """weighted or rrf; empty: as the collection is set."""
    lexical_weight: float | None = None
    """Share of full text in hybrid; None: as the collection is set."""
    assist: Sequence[str] = ()
    """rewrite, align, multi_query, keywords; none: not even what the settings name."""
    widen: str = ""
    """off, section, or a number of neighbours; empty: as the collection is set."""


class Options(TypedDict, total=False):
    """`Asking` as keyword arguments."""

    mode: str
    k: int
    score_threshold: float | None
    filters: Sequence[str]
    as_of: str
    trace: bool
    history: Sequence[tuple[str, str]]
    system: str
    temperature: float | None
    top_p: float | None
    max_tokens: int | None
    merge: str
    lexical_weight: float | None
    assist: Sequence[str]
    widen: str


def body(text: str, options: Asking, *, ask: bool) -> dict[str, Any]:
    """The request's JSON."""
    value: dict[str, Any] = {"query": text, "mode": options.mode}
    named = {"k": options.k, "merge": options.merge or None, "lexical_weight": options.lexical_weight, "widen": options.widen or None}
    value |= {name: item for name, item in named.items() if item is not None}
    if options.trace is not None:
        value["trace"] = options.trace
    if options.collections:
        value["collections"] = list(options.collections)
    if options.score_threshold is not None:
        value["score_threshold"] = options.score_threshold
    if options.filters:
        value["filters"] = list(options.filters)
    if options.as_of:
        value["as_of"] = options.as_of
    if options.assist:
        value["assist"] = list(options.assist)
    if ask:
        value["history"] = [{"role": role, "content": content} for role, content in options.history]
        given = {"system": options.system or None, "temperature": options.temperature, "top_p": options.top_p, "max_tokens": options.max_tokens}
        value |= {name: item for name, item in given.items() if item is not None}
    return value
