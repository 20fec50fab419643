"""Money, by the operator's price list: what a run's models cost, and what questions cost so far."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from pipeline import pricing
from pipeline.contracts import Answer, SearchResult, Usage
from pipeline.pricing import Prices
from workers.figures import Figures
from workers.ledger import metering
from workers.ledger.engine import Database
from workers.views import RunView


def priced(db: Database, prices: Prices, run: RunView) -> RunView:
    """The run with the cost of its build; unknown as soon as one of its models has no price or did not count. Raises Unavailable."""
    if not prices.models:
        return run
    asked = metering.spent(db, run.run_id)
    cost = pricing.added(_cost(prices, model, usage) for model, usage in asked.items())
    return replace(run, usage={**run.usage, "build": replace(run.usage["build"], cost=cost.cost, currency=cost.currency)})


def totals(prices: Prices, tokens: Mapping[tuple[str, ...], float]) -> dict[tuple[str, ...], float]:
    """(part, model, currency) → cost of what the ledger has counted, for models with a price.

    Args:
        tokens: by (part, direction, model), as `metering.Totals` has them.
    """
    found: dict[tuple[str, ...], float] = {}
    for part, model in dict.fromkeys((part, model) for part, _, model in tokens):
        given, made = tokens.get((part, "input", model)), tokens.get((part, "output", model))
        usage = _cost(prices, model, Usage(None if given is None else int(given), None if made is None else int(made), requests=1))
        if usage.cost is not None:
            found[part, model, usage.currency] = usage.cost
    return found


def note(figures: Figures, found: Answer | SearchResult) -> None:
    """Count what a question spent: tokens by part and direction, money by part and currency, requests without a known cost by part."""
    for part, usage in found.usage.items():
        for direction, number in (("input", usage.prompt_tokens), ("output", usage.completion_tokens)):
            if number:
                figures.add("tokens", part, direction, amount=float(number))
        if usage.cost is not None:
            figures.add("cost", part, usage.currency, amount=usage.cost)
        elif usage.requests:
            figures.add("unpriced", part, amount=float(usage.requests))
    if isinstance(found, Answer) and found.cache != "hit" and found.grounding.flagged:
        figures.add("grounding", "refused" if found.refused else "flagged")


def _cost(prices: Prices, model: str, usage: Usage) -> Usage:
    price = prices.of(model)
    return price.of(usage) if price else usage
