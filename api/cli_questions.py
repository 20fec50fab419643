"""`dujiang search` and `dujiang ask`."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING, Any, TypeVar

import click

from api.terminal import clean, collections_option, excerpt, json_option, note, print_json, system

if TYPE_CHECKING:
    from api.asking import Asking
    from api.system import Json, System

F = TypeVar("F", bound=Callable[..., Any])

MODES = ("hybrid", "participle", "keyword", "semantic", "graph")


def _question_options(function: F) -> F:
    for option in reversed(
        (
            collections_option,
            click.option("--mode", type=click.Choice(MODES), default="hybrid", show_default=True, help="keyword is an alias of participle."),
            click.option("-k", "k", type=click.IntRange(1, 1000), help="Most chunks.  [as the collection is set, else 10]"),
            click.option("--score-threshold", type=click.FloatRange(0, 1), help="Least score."),
            click.option("--merge", type=click.Choice(["weighted", "rrf"]), default=None, help="Of full text and vectors."),
            click.option("--lexical-weight", type=click.FloatRange(0, 1), help="Share of full text in hybrid."),
            click.option("--assist", default="", metavar="KINDS", help="Before the search a model does: rewrite, align, multi_query, keywords."),
            click.option("--widen", default="", metavar="HOW", help="Show hits with 1 to 8 chunks before and after, or their section; off."),
            click.option("--filter", "filters", multiple=True, metavar="CONDITION", help="On metadata, e.g. 'year>=2020'. Repeatable."),
            click.option("--as-of", default="", metavar="TIME", help="Only what was valid then, e.g. 2024-05-01T00:00+08:00."),
            click.option("--trace", is_flag=True, help="Show each step."),
            json_option,
        )
    ):
        function = option(function)
    return function


@click.command(epilog="Example: dujiang search 'travel approval' -c handbook -k 3 --filter 'year>=2020'")
@click.argument("text")
@_question_options
def search(text: str, as_json: bool, **given: Any) -> None:
    """Ranked chunks. With `-` instead of TEXT: a question a line on standard input, a JSON document a line on standard output."""
    shown = given.pop("trace")
    options = _asking(given)
    with system() as opened:
        if text == "-":
            _many(lambda line: opened.search(line, options))
            return
        found = opened.search(text, options)
    if as_json:
        print_json(found)
        return
    _hits(found)
    if shown:
        _trace(found)
    else:
        for step in found.get("trace") or ():
            _lost([step["degraded"]])


@click.command(epilog="Example: dujiang ask 'Who approves travel?' -c handbook --stream")
@click.argument("text")
@_question_options
@click.option("--stream", is_flag=True, help="Show the answer as it is written; with --json a JSON line for each piece.")
def ask(text: str, as_json: bool, stream: bool, **given: Any) -> None:
    """A cited answer, or a refusal (exit code 5). With `-` instead of TEXT: a question a line on standard input."""
    options = _asking(given)
    with system() as opened:
        if text == "-":
            _many(lambda line: opened.ask(line, options))
            return
        if stream:
            answer = _streamed(opened, text, options, as_json)
        else:
            answer = opened.ask(text, options)
            if as_json:
                print_json(answer)
            elif not answer["refused"]:
                click.echo(clean(str(answer["answer"])))
    if not as_json:
        _citations(answer)
    if answer["refused"]:
        click.get_current_context().exit(5)


def _asking(given: dict[str, Any]) -> Asking:
    from api.asking import Asking

    given["merge"] = given["merge"] or ""
    given["assist"] = tuple(part.strip() for part in given["assist"].split(",") if part.strip())
    return Asking(**given)


def _questions() -> Iterator[str]:
    for raw in sys.stdin.buffer:
        line = raw.decode("utf-8", "replace").strip()
        if line:
            yield line


def _many(answer: Callable[[str], Json]) -> None:
    """A line out for each line in; a question that fails has its problem in its line, and the exit code says so."""
    from api import problems
    from pipeline.errors import PipelineError

    code = 0
    for line in _questions():
        try:
            value = answer(line)
        except PipelineError as error:
            value: Json = {"query": line, "problem": problems.problem(error).json()}
            code = code or problems.exit_code(error)
        print_json({"query": line, **value})
    if code:
        click.get_current_context().exit(code)


def _streamed(opened: System, text: str, options: Asking, as_json: bool) -> Json:
    answer: Json = {}
    for piece in opened.stream(text, options):
        if not isinstance(piece, str):
            answer = piece
        elif as_json:
            print_json({"event": "token", "text": piece})
        else:
            click.echo(clean(piece), nl=False)
            sys.stdout.flush()
    if as_json:
        print_json({"event": "answer", **answer})
    elif not answer["refused"]:
        click.echo()
    return answer


def _place(item: Json) -> str:
    """Page and lines, where they are known."""
    parts = list[str]()
    if item.get("page"):
        parts.append(f"page {item['page']}")
    first, last = item.get("line_start"), item.get("line_end")
    if first:
        parts.append(f"line {first}" if last in {None, first} else f"lines {first}–{last}")
    return ", ".join(parts)


def _hits(found: Json) -> None:
    hits: Sequence[Json] = found["hits"]
    if not hits:
        click.echo("nothing found")
    for rank, hit in enumerate(hits, 1):
        title = excerpt(str(hit["title"] or hit["document_id"]), 100)
        click.echo(f"{rank:>2}. {hit['score']:.3f}  {click.style(title, bold=True)}  ({hit['collection']})")
        path = " › ".join(excerpt(str(part), 60) for part in hit["heading_path"])
        where = " · ".join(part for part in (path, _place(hit), str(hit["url"])) if part)
        if where:
            click.echo(f"    {where}")
        click.echo(f"    {excerpt(str(hit['text']))}")


def _citations(answer: Json) -> None:
    if answer["refused"]:
        click.echo(f"No answer: {answer['reason']}")
    for citation in answer["citations"]:
        place = " · ".join(part for part in (_place(citation), str(citation["url"])) if part)
        title = excerpt(str(citation["title"] or citation["document_id"]), 100)
        doubt = "" if citation.get("supported", True) else "  (does not say so)"
        click.echo(f"\n[{citation['marker']}] {click.style(title, bold=True)}{' · ' if place else ''}{place}{doubt}")
        click.echo(f"    “{excerpt(str(citation['quote']), 400)}”")
    _lost(answer.get("degraded") or ())
    _grounding(answer["grounding"])
    _trace(answer)


def _lost(parts: Sequence[str]) -> None:
    for part in filter(None, parts):
        note(f"degraded: {part}")


def _grounding(grounding: Json) -> None:
    """What the passages do not carry, where that was asked to be told."""
    if grounding.get("flagged"):
        note(f"unsupported: the passages support {grounding['score']:.0%} of the answer's sentences, {grounding['threshold']:.0%} are asked for")
        for sentence in grounding["unsupported_sentences"]:
            note(f"  - {excerpt(str(sentence), 200)}")
        if grounding["unsupported"]:
            note(f"  in no passage: {excerpt(', '.join(map(str, grounding['unsupported'])), 200)}")


def _trace(value: Json) -> None:
    """A line for each step, and one for each of its candidates with every score."""
    for step in value.get("trace") or ():
        detail = ", ".join(f"{name}={item}" for name, item in step["detail"].items() if name not in {"candidates", "parts"})
        lost = f"  DEGRADED: {step['degraded']}" if step["degraded"] else ""
        note(f"  {step['stage']:<10} {step['seconds'] * 1000:8.1f} ms  {excerpt(detail, 160)}{lost}")
        candidates: Sequence[Json] = step["detail"].get("candidates") or ()
        for rank, hit in enumerate(candidates, 1):
            told: Json = hit.get("scores") or {}
            scores = "  ".join(f"{name} {score:.3f}" for name, score in told.items())
            note(f"{rank:>14}. {hit['score']:.3f}  {excerpt(str(hit['key']), 60)} #{hit['ordinal']} ({hit['collection']})  {scores}")
        parts: dict[str, Json] = step["detail"].get("parts") or {}
        for part, spent in parts.items():
            known = {name: "unknown" if item is None else item for name, item in spent.items()}
            note(f"              {part}: {known['tokens']} tokens, {known['requests']} requests, cost {known['cost']}")
