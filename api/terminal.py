"""What the verbs share: options, tables, and text that is safe to print."""

from __future__ import annotations

import sys
import unicodedata
from collections.abc import Callable, Generator, Sequence
from contextlib import contextmanager
from datetime import datetime
from typing import TYPE_CHECKING, Any, TypeVar

import click

if TYPE_CHECKING:
    from api.system import System
    from workers.views import Page

F = TypeVar("F", bound=Callable[..., Any])
T = TypeVar("T")

json_option = click.option("--json", "as_json", is_flag=True, help="One JSON document on standard output.")
yes_option = click.option("-y", "--yes", is_flag=True, help="Do not ask.")
dry_run_option = click.option("--dry-run", is_flag=True, help="Say what would happen, and do nothing.")
collections_option = click.option("-c", "--collection", "collections", multiple=True, metavar="NAME", help="May be repeated; all when left out.")
collection_option = click.option("-c", "--collection", "collection", required=True, metavar="NAME", help="The collection.")


def page_options(default: int) -> Callable[[F], F]:
    """`--limit` and `--after` of every list."""

    def add(function: F) -> F:
        function = click.option("--after", default="", metavar="ID", help="Go on after this entry (`last_id` of the list before).")(function)
        return click.option("--limit", default=default, show_default=True, type=click.IntRange(1, 1000), help="Most entries.")(function)

    return add


@contextmanager
def system(**flags: object) -> Generator[System]:
    """The system that the settings name, closed at the end."""
    from api.system import open_system

    opened = open_system(flags)
    try:
        yield opened
    finally:
        opened.close()


def print_json(value: object) -> None:
    """One JSON document, one line."""
    from api.encoding import dumps
    from workers.views import shape

    click.echo(dumps(shape(value)))
    sys.stdout.flush()


def note(text: str) -> None:
    """A line for a person, on standard error."""
    click.echo(clean(text), err=True)


def confirm(question: str, *, yes: bool) -> None:
    """Ask before something is destroyed. Raises a usage error where nobody can answer."""
    if yes:
        return
    if not sys.stdin.isatty():
        raise click.UsageError(f"{question} Say --yes, since nobody can be asked here.")
    click.confirm(question, abort=True, err=True)


def pairs(values: Sequence[str], option: str) -> dict[str, str]:
    """``key=value`` options. Raises a usage error naming the wrong one."""
    found = dict[str, str]()
    for value in values:
        name, equals, rest = value.partition("=")
        if not equals or not name.strip():
            raise click.UsageError(f"{option} {value!r} is not key=value.")
        found[name.strip()] = rest
    return found


def clean(text: str) -> str:
    """Without control characters: a document must not steer the reader's terminal."""
    return "".join(character if character in "\n\t" or unicodedata.category(character) not in {"Cc", "Cf"} else "�" for character in text)


def excerpt(text: str, size: int = 240) -> str:
    """The beginning on one line."""
    flat = " ".join(clean(text).split())
    return flat if len(flat) <= size else f"{flat[: size - 1]}…"


def width(text: str) -> int:
    """Columns of a terminal; Chinese characters take two."""
    return sum(2 if unicodedata.east_asian_width(character) in "WF" else 0 if unicodedata.combining(character) else 1 for character in text)


def table(head: Sequence[str], rows: Sequence[Sequence[object]]) -> None:
    """Aligned columns; numbers to the right."""
    cells = [[_cell(value) for value in row] for row in rows]
    widths = [max([width(name), *(width(row[position]) for row in cells)]) for position, name in enumerate(head)]
    right = [bool(rows) and all(isinstance(row[position], (int, float)) or row[position] is None for row in rows) for position in range(len(head))]
    click.echo(click.style(_line(head, widths, right), bold=True))
    for row in cells:
        click.echo(_line(row, widths, right))


def _line(cells: Sequence[str], widths: Sequence[int], right: Sequence[bool]) -> str:
    padded = list[str]()
    for cell, size, flush in zip(cells, widths, right, strict=True):
        space = " " * (size - width(cell))
        padded.append(space + cell if flush else cell + space)
    return "  ".join(padded).rstrip()


def _cell(value: object) -> str:
    if value is None:
        return "–"
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, float):
        return f"{value:.1f}"
    if isinstance(value, datetime):
        return value.astimezone().strftime("%Y-%m-%d %H:%M:%S")
    if isinstance(value, (list, tuple)):
        return ", ".join(str(item) for item in value) or "–"  # pyright: ignore[reportUnknownVariableType, reportUnknownArgumentType]
    return excerpt(str(value), 80)


def facts(items: Sequence[tuple[str, object]]) -> None:
    """Name and value, one pair a line."""
    size = max(width(name) for name, _ in items)
    for name, value in items:
        click.echo(f"{click.style(name, bold=True)}{' ' * (size - width(name))}  {_cell(value)}")


def over(names: Sequence[str], fetch: Callable[[str], Page[T]]) -> Page[T]:
    """One list over several collections, or over all when none is named."""
    from workers.views import Page

    pages = [fetch(name) for name in names or ("",)]
    if len(pages) == 1:
        return pages[0]
    data = tuple(item for page in pages for item in page.data)
    first = next((page.first_id for page in pages if page.first_id), None)
    return Page(data, first, pages[-1].last_id, any(page.has_more for page in pages))


def more(page: Page[T]) -> None:
    """Say how to see the rest."""
    if page.has_more:
        note(f"there is more: --after {page.last_id}")


def still_to_do(outstanding: Sequence[str]) -> None:
    """Say what still holds something of what was deleted."""
    for left in outstanding:
        note(f"still to be done: {left}")
    if outstanding:
        note("a running system does it within a minute, or as soon as what is away is back; `dujiang audit --repair` does it now")
