"""Pages of a listing: opaque tokens bound to the query, and the oddities that a reader of pages must survive."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from tests.simulators.served import Answer, Call

Invalid = Callable[[], Answer]


@dataclass(frozen=True, slots=True)
class Slice:
    """One page before it is worded."""

    rows: list[Any]
    more: bool
    token: str


class Pager:
    """Hands out pages of any listing.

    A listing is held still from its first page to its last when `still`; otherwise every page is cut from what is there at that moment, so that a
    change between two pages shifts what follows.
    """

    def __init__(self) -> None:
        self.still = True
        self.repeat_from = 0
        """From this page on (counted from 1) the token of that page comes again and again; 0: never."""
        self.repeat_on = ""
        """Only in listings whose path and query hold this."""
        self._open: dict[str, tuple[str, int, list[Any]]] = {}

    def void(self) -> None:
        """Page tokens that were handed out are valid no more."""
        self._open.clear()

    def cut(self, call: Call, rows: Sequence[Any], most: int, *, default: int = 0, still: bool | None = None) -> Slice | None:
        """The page that a call asks for; None when its page token is not one of this listing."""
        size = max(1, min(most, int(call.query.get("page_size") or call.query.get("limit") or default or most)))
        print_ = repr((call.path, sorted((k, v) for k, v in call.query.items() if k not in ("page_token", "page_size")), call.body))
        held, at, listing = self.still if still is None else still, 0, list(rows)
        given = call.query.get("page_token", "")
        if given:
            if given not in self._open or self._open[given][0] != print_:
                return None
            _, at, kept = self._open[given]
            listing = kept if held else listing
        end = at + size
        more = end < len(listing)
        page = at // size + 1
        repeated = bool(self.repeat_from) and page >= self.repeat_from and self.repeat_on in f"{call.path}?{call.query}" and given != ""
        if not more and not repeated:
            return Slice(listing[at:end], False, "")
        token = given if repeated else hashlib.sha256(f"{print_}{end}{len(self._open)}".encode()).hexdigest()[:40]
        if not repeated:
            self._open[token] = (print_, end, listing if held else [])
        return Slice(listing[at:end], True, token)
