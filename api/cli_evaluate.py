"""`dujiang eval`."""

from __future__ import annotations

from typing import TYPE_CHECKING, TextIO

import click

from api.terminal import collection_option, dry_run_option, facts, json_option, note, print_json, system

if TYPE_CHECKING:
    from workers.tuning_views import CalibrationView


@click.group("eval", epilog="Example: dujiang eval calibrate -c handbook labelled.jsonl --dry-run")
def evaluate() -> None:
    """Measure a collection against labelled questions."""


@evaluate.command("calibrate", epilog="Example: dujiang eval calibrate -c handbook labelled.jsonl")
@click.argument("file", type=click.File("r", encoding="utf-8-sig"))
@collection_option
@click.option("--cap", type=click.FloatRange(0, 1), default=0.05, show_default=True, help="Most of the answerable questions that may be refused.")
@dry_run_option
@json_option
def calibrate(file: TextIO, collection: str, cap: float, dry_run: bool, as_json: bool) -> None:
    """Take the refusal threshold from FILE: a line {"question": "…", "answerable": true} a question; `-` reads standard input.

    Of all thresholds that refuse at most --cap of the answerable questions, the one that tells both kinds apart best (Youden's J).
    It holds for the generation that answers now; after a reindex, calibrate anew.
    """
    from pipeline.calibrate import labelled

    questions = labelled(file)
    with system() as opened:
        found = opened.calibrate(collection, questions, cap=cap, dry_run=dry_run)
    print_json(found) if as_json else _told(found)


def _told(view: CalibrationView) -> None:
    found = view.calibration
    good, bad = found.answered + found.wrongly_refused, found.refused + found.wrongly_answered
    lost, let = found.wrongly_refused / good, found.wrongly_answered / bad
    facts(
        [
            ("collection", f"{view.collection}, generation {view.generation}"),
            ("AUC", f"{found.auc:.4f}"),
            ("threshold", f"{found.threshold:g}"),
            ("before", f"{view.before:g} ({view.before_source})"),
            ("answerable", f"{good}: {found.answered} answered, {found.wrongly_refused} refused ({lost:.1%}, at most {found.cap:.1%})"),
            ("unanswerable", f"{bad}: {found.refused} refused, {found.wrongly_answered} answered ({let:.1%})"),
        ]
    )
    if min(good, bad) < 20:
        note("fewer than twenty questions of a kind: take the threshold with care")
    note("stored for this generation" if view.stored else "nothing was stored")
