"""From what a caller asks to a Question."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

from pipeline.contracts import Filter, Mode, Question
from pipeline.errors import BadRequest, NotFound

if TYPE_CHECKING:
    from api.schemas import AskIn, FilterIn, QuestionIn
    from workers.dispatch import Platform


def mode_of(name: str) -> Mode:
    """`keyword` is an alias of `participle`. Raises BadRequest."""
    try:
        return Mode("participle" if name == "keyword" else name)
    except ValueError:
        known = ", ".join(mode.value for mode in Mode)
        raise BadRequest(f"there is no mode {name!r}", pointer="/mode", hint=f"Use one of: {known}.") from None


def filters_of(items: Sequence[FilterIn | str] | Mapping[str, object]) -> tuple[Filter, ...]:
    """Conditions given as text (``year>=2020``), as objects, or as one object of names and values."""
    if not items:
        return ()
    from pipeline.stores import filters

    if isinstance(items, Mapping):
        return filters.from_json(dict(items))
    found = list[Filter]()
    for item in items:
        if isinstance(item, str):
            found.append(filters.parse(item))
        else:
            found += filters.from_json([item.model_dump()])
    return tuple(found)


def every_collection(platform: Platform, tenant: str) -> tuple[str, ...]:
    """Names of all collections. Raises NotFound when there are none."""
    names, after = list[str](), ""
    while True:
        page = platform.collections(tenant=tenant, limit=100, after=after)
        names += [item.name for item in page.data]
        if not page.has_more or not page.last_id:
            break
        after = page.last_id
    if not names:
        raise NotFound("there is no collection yet", hint="Ingest something first: `dujiang ingest FOLDER -c NAME`.")
    return tuple(names)


def question_of(body: QuestionIn, collections: Sequence[str], tenant: str) -> Question:
    """The question of a search."""
    return Question(
        text=body.query,
        collections=tuple(dict.fromkeys(collections)),
        tenant=tenant,
        mode=mode_of(body.mode),
        k=body.k or 0,
        score_threshold=body.score_threshold,
        filters=filters_of(body.filters),
        as_of=body.as_of,
        merge=body.merge or "",
        lexical_weight=body.lexical_weight,
        widen=body.widen,
        assist=tuple(body.assist),
    )


def asked(body: AskIn, collections: Sequence[str], tenant: str) -> Question:
    """The question of an answer, with its history and generation settings."""
    from dataclasses import replace

    return replace(
        question_of(body, collections, tenant),
        history=tuple((turn.role, turn.content) for turn in body.history),
        system=body.system,
        temperature=body.temperature,
        top_p=body.top_p,
        max_tokens=body.max_tokens,
    )
