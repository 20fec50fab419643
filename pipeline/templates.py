"""Small tasks for a model, each with a template of its own: keywords of a text, tags for its content, citations for an answer that has none.

Documents are data in all of them: their frames cannot be closed from inside.
"""

from __future__ import annotations

import re
from collections.abc import Sequence

from pipeline import markers, prompt
from pipeline.contracts import Evidence
from pipeline.errors import BadRequest
from pipeline.protocols import LLM, Generation
from pipeline.structured import ask_json

MOST_TAGS = 5
MOST_KEYWORDS = 12
BEFORE_A_STOP = re.compile(r"\s+(?=[,.;:!?，。；：！？、])")


def keywords(llm: LLM, text: str, *, most: int = MOST_KEYWORDS) -> tuple[str, ...]:
    """What to search for to find out about a text or question. Raises what the model raises, and BrokenContract."""
    return _listed(llm, "keywords", "keywords", most, question=prompt.shield(text))


def tags(llm: LLM, text: str, *, allowed: Sequence[str] = (), most: int = MOST_TAGS) -> tuple[str, ...]:
    """Tags for a passage, most telling first; with `allowed` only those. Raises what the model raises, and BrokenContract."""
    choice = f"Choose from these alone: {', '.join(allowed)}." if allowed else "Choose short nouns in the passage's own language."
    found = _listed(llm, "content_tagging", "tags", most, text=prompt.shield(text), choice=choice)
    known = {tag.casefold(): tag for tag in allowed}
    return tuple(dict.fromkeys(known[tag.casefold()] for tag in found if tag.casefold() in known)) if allowed else found


def cited(llm: LLM, answer: str, evidence: Sequence[Evidence]) -> str:
    """The answer with markers put in by the model; the answer itself where the model has changed anything else. Raises what the model raises."""
    if not evidence:
        raise BadRequest("there is no evidence to cite", hint="Gather some first.", code="no_evidence")
    values = {"passages": "\n\n".join(map(prompt.render, evidence)), "answer": prompt.shield(answer)}
    messages, _ = prompt.fill("citation", **values)
    said = llm.complete(messages, Generation(temperature=0.0)).text.strip()
    return said if _bare(said) == _bare(answer) else answer


def _bare(answer: str) -> list[str]:
    """Its words without markers; a marker may have brought a blank with it before a stop."""
    return BEFORE_A_STOP.sub("", markers.strip(answer)).split()


def _listed(llm: LLM, template: str, name: str, most: int, **values: str) -> tuple[str, ...]:
    items = {"type": "array", "items": {"type": "string", "maxLength": 100}, "maxItems": most}
    messages, _ = prompt.fill(template, most=str(most), **values)
    made = ask_json(llm, messages, {"type": "object", "properties": {name: items}, "required": [name]}, options=Generation(temperature=0.0))
    return tuple(dict.fromkeys(str(one).strip() for one in made.value[name] if str(one).strip()))
