"""Runs of text inside a block: styles, links, mentions, formulas, dates."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from types import MappingProxyType
from typing import cast
from urllib.parse import unquote

Json = Mapping[str, object]

NOTHING: Json = MappingProxyType({})

LANGUAGES = (
    "plaintext abap ada apache apex asm bash csharp cpp c cobol css coffeescript d dart delphi django dockerfile erlang "
    "fortran foxpro go groovy html htmlbars http haskell json java javascript julia kotlin latex lisp logo lua matlab "
    "makefile markdown nginx objectivec openedge php perl postscript powershell prolog protobuf python r rpg ruby rust sas "
    "scss sql scala scheme scratch shell swift thrift typescript vbscript vb xml yaml cmake diff gherkin graphql glsl "
    "properties solidity toml"
).split()
"""Of code blocks, by the vendor's number from 1."""


def table(value: object) -> Json:
    """An object, or an empty one for null and for anything else."""
    return cast("Json", value) if isinstance(value, dict) else NOTHING


def rows(value: object) -> Sequence[object]:
    """A list; a single value, which some answers give in its place, as a list of one."""
    if isinstance(value, list):
        return cast("list[object]", value)
    return [] if value in (None, "") else [value]


class Inline:
    """Elements of one document as Markdown.

    Args:
        names: open id of a person → name.
        block: text of a block that stands inline.
    """

    def __init__(self, names: Json) -> None:
        self._names = names

    def text(self, payload: Json) -> str:
        """All elements of a text-like payload. Line breaks stay."""
        return "".join(self.element(table(element)) for element in rows(payload.get("elements")))

    def element(self, element: Json) -> str:
        """One element; what is unknown gives the text that it holds, if any."""
        for kind, payload in element.items():
            found = table(payload)
            if kind == "text_run":
                return self._run(found)
            if kind == "mention_user":
                return "@" + str(self._names.get(str(found.get("user_id"))) or found.get("name") or "someone")
            if kind in ("mention_doc", "link_preview"):
                return _link(str(found.get("title") or found.get("url") or ""), str(found.get("url") or ""))
            if kind == "equation":
                return f"${str(found.get('content') or '').strip()}$"
            if kind == "reminder":
                return _moment(found.get("expire_time"))
            if kind == "file":
                return f"[{found.get('name') or 'file'}]"
            if isinstance(found.get("content"), str):
                return str(found["content"])
        return ""

    def _run(self, run: Json) -> str:
        content = str(run.get("content") or "")
        style = table(run.get("text_element_style"))
        inner = content.strip()
        if not inner or not style:
            return content
        before, after = content[: len(content) - len(content.lstrip())], content[len(content.rstrip()) :]
        if style.get("inline_code"):
            inner = f"`{inner}`"
        for name, mark in (("bold", "**"), ("italic", "*"), ("strikethrough", "~~")):
            if style.get(name):
                inner = f"{mark}{inner}{mark}"
        address = str(table(style.get("link")).get("url") or "")
        return before + (_link(inner, address) if address else inner) + after


def _link(text: str, address: str) -> str:
    url = unquote(address)
    return f"[{text}]({url})" if url and text and text != url else text or url


def _moment(milliseconds: object) -> str:
    try:
        return datetime.fromtimestamp(int(str(milliseconds)) / 1000, UTC).strftime("%Y-%m-%d %H:%M")
    except (ValueError, OverflowError, OSError):
        return ""
