"""XML parts of Office files: lxml with types, without entities, network or comments."""

from __future__ import annotations

from collections.abc import Iterator
from importlib import import_module
from typing import Any, Protocol, cast

from pipeline.errors import Malformed


class Element(Protocol):
    """The part of an lxml element that is used here."""

    tag: str
    text: str | None

    def find(self, path: str) -> Element | None: ...
    def iterfind(self, path: str) -> Iterator[Element]: ...
    def findtext(self, path: str) -> str | None: ...
    def get(self, name: str) -> str | None: ...
    def iter(self, tag: str) -> Iterator[Element]: ...
    def iterancestors(self) -> Iterator[Element]: ...
    def __iter__(self) -> Iterator[Element]: ...
    def __len__(self) -> int: ...


def read(data: bytes, what: str) -> Element:
    """The root element. Raises Malformed; `what` names the file in the message."""
    etree: Any = import_module("lxml.etree")
    invalid: type[Exception] = etree.XMLSyntaxError
    parser = etree.XMLParser(resolve_entities=False, no_network=True, huge_tree=True, remove_comments=True, remove_pis=True)
    try:
        return cast(Element, etree.fromstring(data, parser))
    except invalid as error:
        raise Malformed(f"a part of the {what} file is not valid XML") from error
