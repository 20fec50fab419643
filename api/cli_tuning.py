"""A collection's own search settings on the command line."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any, TypeVar

import click

if TYPE_CHECKING:
    from workers.views import CollectionView

F = TypeVar("F", bound=Callable[..., Any])

NAMES = ("top_k", "score_threshold", "merge", "lexical_weight", "widen")


def tuning_options(function: F) -> F:
    """`--top-k`, `--score-threshold`, `--merge`, `--lexical-weight`, `--widen`."""
    for option in reversed(
        (
            click.option("--top-k", type=click.IntRange(1, 1000), help="Most chunks of a search."),
            click.option("--score-threshold", type=click.FloatRange(0, 1), help="Least score of a hit."),
            click.option("--merge", type=click.Choice(["weighted", "rrf"]), help="Of full text and vectors in hybrid."),
            click.option("--lexical-weight", type=click.FloatRange(0, 1), help="Share of full text in hybrid."),
            click.option("--widen", metavar="HOW", help="Show hits with 1 to 8 chunks before and after, or their section; off."),
        )
    ):
        function = option(function)
    return function


def changed(tuning: Mapping[str, object]) -> dict[str, object]:
    """Those that were given."""
    return {name: value for name, value in tuning.items() if value is not None}


def told(view: CollectionView) -> list[tuple[str, object]]:
    """A line for each setting, and one for the refusal threshold."""
    rows: list[tuple[str, object]] = [(name, "default" if (value := getattr(view.search, name)) is None else value) for name in NAMES]
    found = view.calibration
    text = "the embedder profile's" if found is None else f"{found.threshold:g}, calibrated for generation {view.generation} (AUC {found.auc:.3f})"
    return [*rows, ("refuse_below", text)]
