"""What models cost, by the operator's own price list: prices change too often to be shipped.

In ``dujiang.toml``::

    [prices]
    currency = "CNY"
    "qwen-plus*" = { input = 0.8, output = 2.0, cached = 0.2 }

or the same as JSON in ``DUJIANG_PRICES``. A name is a pattern for the model (``gpt-4o-mini``) or for provider and model
(``openai:gpt-4o-*``), the letters' case aside; the longest that fits counts. Prices are for a million tokens.
What has no price, or no reported tokens, has no cost either: null, never 0.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from fnmatch import fnmatchcase
from math import fsum, isfinite
from typing import cast

from pipeline.contracts import Step, Usage
from pipeline.errors import BadRequest

MILLION = 1_000_000
CURRENCY = "USD"
KINDS = ("input", "output", "cached")


@dataclass(frozen=True, slots=True)
class Price:
    """One model's prices for a million tokens."""

    currency: str
    input: float
    output: float = 0.0
    cached: float | None = None
    """For input that the provider had in its own cache; None: as any other input."""

    def of(self, usage: Usage) -> Usage:
        """The usage with its cost, which stays None where a number that it needs was not reported."""
        prompt, completion = usage.prompt_tokens, usage.completion_tokens
        if prompt is None or (completion is None and self.output > 0.0):
            return usage
        cached = min(usage.cached_tokens or 0, prompt) if self.cached is not None else 0
        parts = ((prompt - cached) * self.input, cached * (self.cached or 0.0), (completion or 0) * self.output)
        return replace(usage, cost=fsum(parts) / MILLION, currency=self.currency)


@dataclass(frozen=True, slots=True)
class Prices:
    """The price list."""

    currency: str = CURRENCY
    models: Mapping[str, Price] = field(default_factory=dict[str, Price])
    """Pattern in lower case → price."""

    def of(self, name: str) -> Price | None:
        """The price of ``provider:MODEL`` or MODEL; None where the list has none."""
        wanted = name.lower()
        bare = wanted.partition(":")[2] or wanted
        fitting = [pattern for pattern in self.models if fnmatchcase(wanted, pattern) or fnmatchcase(bare, pattern)]
        return self.models[max(fitting, key=lambda pattern: (pattern in {wanted, bare}, len(pattern), pattern))] if fitting else None


def load(text: str) -> Prices:
    """The list as it stands in the settings, as JSON; empty text is an empty list.

    Raises BadRequest naming what is wrong with it.
    """
    if not text:
        return Prices()
    try:
        raw: object = json.loads(text)
    except ValueError:
        raise _wrong("it is not JSON") from None
    if not isinstance(raw, dict):
        raise _wrong("it is no table")
    table = cast("dict[str, object]", raw)
    currency = table.pop("currency", CURRENCY)
    if not isinstance(currency, str) or not currency.strip():
        raise _wrong("the currency is no name")
    return Prices(currency, {pattern.lower(): _price(pattern, entry, currency) for pattern, entry in table.items()})


def added(usages: Iterable[Usage]) -> Usage:
    """All of them together: a figure that one of those who asked did not report is unknown for the whole."""
    asked = [usage for usage in usages if usage.requests]
    if not asked:
        return Usage()
    costs = [usage.cost for usage in asked]
    known = [cost for cost in costs if cost is not None]
    return Usage(
        _sum([usage.prompt_tokens for usage in asked]),
        _sum([usage.completion_tokens for usage in asked if usage.completion_tokens is not None] or [None]),
        _sum([usage.total_tokens for usage in asked]),
        sum(usage.requests for usage in asked),
        sum(usage.retries for usage in asked),
        fsum(known) if len(known) == len(costs) else None,
        _sum([usage.cached_tokens for usage in asked if usage.cached_tokens is not None] or [None]),
        next((usage.currency for usage in asked if usage.currency), ""),
    )


def bill(usage: Mapping[str, Usage], steps: Sequence[Step]) -> Step:
    """The last line of a trace: what was in use (K, k, budget), and tokens and money by part and together."""
    detail = {name: value for step in steps for name, value in _sizes(step)}
    whole = added(usage.values())
    parts = {part: {"tokens": spent.total_tokens, "requests": spent.requests, "cost": spent.cost} for part, spent in usage.items() if spent.requests}
    detail |= {"parts": parts, "tokens": whole.total_tokens, "cost": whole.cost, "currency": whole.currency or None}
    return Step("cost", fsum(step.seconds for step in steps if not step.detail.get("from_cache")), detail)


def _sizes(step: Step) -> Iterable[tuple[str, object]]:
    match step.stage:
        case "retrieve" if "depth" in step.detail:
            return [("K", step.detail["depth"]), ("k", step.detail.get("k"))]
        case "rerank":
            return [("reranked", step.detail.get("passages"))]
        case "prompt":
            return [("budget_tokens", step.detail.get("budget")), ("prompt_tokens", step.detail.get("tokens"))]
        case _:
            return []


def _price(pattern: str, entry: object, currency: str) -> Price:
    if not isinstance(entry, dict):
        raise _wrong(f"{pattern!r} has no table of prices")
    given = cast("dict[str, object]", entry)
    unknown = sorted(set(given) - set(KINDS))
    if unknown or "input" not in given:
        raise _wrong(f"{pattern!r} has {unknown[0]!r}" if unknown else f"{pattern!r} has no price for input")
    numbers: dict[str, float] = {}
    for kind, value in given.items():
        if isinstance(value, bool) or not isinstance(value, int | float) or not isfinite(value) or value < 0:
            raise _wrong(f"the {kind} price of {pattern!r} is no amount")
        numbers[kind] = float(value)
    return Price(currency, numbers["input"], numbers.get("output", 0.0), numbers.get("cached"))


def _wrong(what: str) -> BadRequest:
    return BadRequest(
        f"the price list cannot be read: {what}",
        hint='Write [prices] in dujiang.toml as "MODEL" = { input = 0.15, output = 0.6, cached = 0.075 }, or DUJIANG_PRICES as the same in JSON.',
        code="bad_setting",
    )


def _sum(values: Sequence[int | None]) -> int | None:
    known = [value for value in values if value is not None]
    return sum(known) if len(known) == len(values) else None
