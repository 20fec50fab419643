"""What a reader is sent: rules, numbered passages and the question, within a budget of tokens."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Sequence
from functools import cache
from importlib.resources import files
from string import Template
from urllib.parse import unquote

from pipeline import tokens
from pipeline.contracts import Evidence, Hit, Prompt, Question

PASSAGE_TOKENS = 6_000
"""All passages together; ten chunks of 400 tokens fit, and so does every current model."""
HISTORY_TOKENS = 1_500
LEAST_TOKENS = 32
"""A passage of which less would be left is not begun."""
NO_ANSWER = "NO_ANSWER"
"""What the template tells a reader to begin with when the passages do not hold the answer."""

LANGUAGES = {"zh": "Chinese", "ja": "Japanese", "ko": "Korean"}
_UNSEEN = "\u00ad\u180e\u200b-\u200f\u202a-\u202e\u2060-\u2064\u2066-\u206f\ufe00-\ufe0f\ufeff\U000e0000-\U000e01ef"
_SKIP = rf"[\s{_UNSEEN}]*"


def _spelt(word: str) -> str:
    """The word with whatever nobody sees between its letters."""
    return f"[{_UNSEEN}]*".join(word)


OPENING = re.compile(
    rf"<(?={_SKIP}/?{_SKIP}(?:{'|'.join(map(_spelt, ('passage', 'question', 'conversation', 'titles', 'answer')))})\b"
    r"|[|｜]|<\s*/?\s*SYS|/?(?:s|bos|eos|start_of_turn|end_of_turn|system|assistant)>)"
    r"|\[(?=/?(?:INST|AVAILABLE_TOOLS|TOOL_CALLS|TOOL_RESULTS|SYSTEM_PROMPT)\])",
    re.IGNORECASE,
)
"""What could open or close a frame of ours, or stands for a control token of some model."""
REFUSES = re.compile(r"(?<=NO)_(?=ANSWER)")
SMUGGLED = re.compile("[\U000e0000-\U000e007f]")
"""Tag characters: a model reads them as letters, a person sees nothing."""


def select(
    hits: Sequence[Hit], *, budget_tokens: int = PASSAGE_TOKENS, limit: int | None = None, encoding: str = "cl100k_base"
) -> tuple[Evidence, ...]:
    """The best hits that fit, numbered from 1 in their order; the last one may be cut.

    The frames around the passages are not counted against the budget.
    """
    chosen: list[Evidence] = []
    left = budget_tokens
    for hit in hits[:limit]:
        if left < LEAST_TOKENS and chosen:
            break
        whole = _body(hit)
        size = tokens.count(whole, encoding)
        text = whole if size <= left else tokens.cut(whole, left, encoding)
        shown = len(text) - (len(whole) - len(hit.text))
        if shown <= 0:
            break
        chosen.append(Evidence(len(chosen) + 1, hit, text, hit.start, hit.start + shown, truncated=len(text) < len(whole)))
        left -= min(size, left)
    return tuple(chosen)


def build(
    question: Question, evidence: Sequence[Evidence], *, language: str = "", history_tokens: int = HISTORY_TOKENS, encoding: str = "cl100k_base"
) -> Prompt:
    """The messages for one question.

    The caller's system text stands in front of the rules, so that the rules have the last word; of the history
    the latest turns that fit the budget are kept, whole.
    """
    template, version = _template()
    rules, _, body = template.partition("\n---\n")
    spoken = f"the language of the question ({LANGUAGES[language]})" if language in LANGUAGES else "the language of the question"
    values = {"language": spoken, "passages": "\n\n".join(map(render, evidence)), "question": shield(question.text)}
    system = Template(rules).substitute(values).strip()
    if question.system.strip():
        system = f"{question.system.strip()}\n\n{system}"
    user = Template(body).substitute(values).strip()
    messages = (("system", system), *_recent(question.history, history_tokens, encoding), ("user", user))
    return Prompt(messages, tuple(evidence), version, sum(tokens.count(text, encoding) for _, text in messages))


def version() -> str:
    """Changes whenever the template does."""
    return _template()[1]


def render(evidence: Evidence) -> str:
    """One passage in its frame."""
    return f'<passage number="{evidence.marker}" source="{source(evidence.hit)}">\n{shield(evidence.text)}\n</passage>'


def shield(text: str) -> str:
    """The text with the first character of every frame, control token and `NO_ANSWER` made full width, and smuggled letters made visible.

    One character stands for one, and `text.fold` makes the two widths equal: no offset moves, and what a reader quotes is still found
    in the document.
    """
    text = OPENING.sub(lambda match: chr(ord(match[0]) + 0xFEE0), text)
    return SMUGGLED.sub("\ufffd", REFUSES.sub("＿", text))


def source(hit: Hit) -> str:
    """Where a passage comes from, as a reader and a person see it: ``TITLE — URL or file name, page N``."""
    where = hit.url or unquote(hit.key.rpartition("/")[2])
    parts = [part for part in dict.fromkeys((hit.title, where)) if part]
    place = ""
    if hit.page is not None:
        place = f", page {hit.page}"
    elif hit.line_start is not None:
        place = f", lines {hit.line_start}-{hit.line_end or hit.line_start}"
    return re.sub(r"\s+", " ", " — ".join(parts) + place).replace('"', "”").replace("<", "＜").replace(">", "＞").strip()


def lead_length(evidence: Evidence) -> int:
    """Characters of `Evidence.text` in front of the chunk's own."""
    return len(evidence.text) - (evidence.end - evidence.start)


def _body(hit: Hit) -> str:
    """The lead, on lines of its own, and the chunk."""
    if not hit.lead:
        return hit.text
    return f"{hit.lead}{'' if hit.lead.endswith(chr(10)) else chr(10)}{hit.text}"


def _recent(history: Sequence[tuple[str, str]], budget: int, encoding: str) -> tuple[tuple[str, str], ...]:
    """Only a user's and an assistant's turns: nobody else's words may pass for rules."""
    kept: list[tuple[str, str]] = []
    for role, text in reversed(history):
        if role not in {"user", "assistant"}:
            continue
        budget -= tokens.count(text, encoding)
        if budget < 0:
            break
        kept.append((role, text))
    return tuple(reversed(kept))


def fill(name: str, **values: str) -> tuple[tuple[tuple[str, str], ...], str]:
    """The messages of another template, and its version. Whoever calls shields what comes from people or documents."""
    template, made = _template(name)
    rules, _, body = template.partition("\n---\n")
    return (("system", Template(rules).substitute(values).strip()), ("user", Template(body).substitute(values).strip())), made


def fill_version(name: str) -> str:
    """Changes whenever that template does."""
    return _template(name)[1]


@cache
def _template(name: str = "answer") -> tuple[str, str]:
    """The template and the first 16 hex digits of its SHA-256."""
    data = (files("pipeline") / "prompts" / f"{name}.md").read_bytes()
    return data.decode(), hashlib.sha256(data).hexdigest()[:16]
