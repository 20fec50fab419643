"""What a simulated Feishu tenant holds: folders, documents with revisions, wiki spaces and media, and how a test changes them."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from tests.simulators.feishu_blocks import Block, flat
from tests.simulators.served import Clock

PREFIX = {
    "folder": "fldcn",
    "docx": "doxcn",
    "doc": "doccn",
    "sheet": "shtcn",
    "bitable": "bascn",
    "file": "boxcn",
    "mindnote": "bmncn",
    "slides": "sldcn",
    "shortcut": "nodcn",
}
OWNER = "ou_keeper"


@dataclass(slots=True)
class Thing:
    """One object of the drive. `token` is its identity wherever it is moved; `parent` the folder, "" for one that only the wiki shows."""

    token: str
    type: str
    title: str
    parent: str = ""
    created: float = 0.0
    edited: float = 0.0
    owner: str = OWNER
    revision: int = 1
    blocks: list[dict[str, Any]] = field(default_factory=list[dict[str, Any]])
    history: dict[int, list[dict[str, Any]]] = field(default_factory=dict[int, list[dict[str, Any]]])
    content: bytes = b""
    target: str = ""
    """Of a shortcut: what it points to."""
    pages: list[Page] = field(default_factory=list["Page"])
    tables: list[Table] = field(default_factory=list["Table"])
    deleted: bool = False
    trashed: bool = False
    forbidden: bool = False
    """Listed, but the app may not read it."""
    hidden: bool = False
    """Left out of listings for lack of a right (after paging: pages come short or empty), and unreadable."""
    closed: bool = False
    """Readable, but not to be downloaded or exported."""

    @property
    def gone(self) -> bool:
        return self.deleted or self.trashed

    @property
    def barred(self) -> bool:
        return self.forbidden or self.hidden


@dataclass(slots=True)
class Page:
    """One page of a spreadsheet. Cells are what FormattedValue shows; `raw` those that the default rendering shows instead."""

    id: str
    title: str
    rows: list[list[Any]]
    hidden: bool = False
    merges: list[tuple[int, int, int, int]] = field(default_factory=list[tuple[int, int, int, int]])
    """First row, last row, first column, last column, from 0, the last ones included."""
    raw: Mapping[tuple[int, int], Any] = field(default_factory=dict[tuple[int, int], Any])
    resource: str = "sheet"


@dataclass(slots=True)
class Table:
    """One table of a bitable: fields as (name, type code), rows by field name."""

    id: str
    name: str
    fields: list[tuple[str, int]]
    rows: list[dict[str, Any]]
    locked: bool = False
    """Advanced permissions without a right to the rows: success, and nothing in it."""


@dataclass(slots=True)
class Node:
    """One place in a wiki tree; the document is `thing`."""

    token: str
    space: str
    thing: str
    parent: str = ""
    shortcut: bool = False
    origin: str = ""
    """Of a shortcut: the node it points to."""
    created: float = 0.0


@dataclass(slots=True)
class Space:
    id: str
    name: str
    below: dict[str, list[Node]] = field(default_factory=dict[str, "list[Node]"])
    """Node token, "" for the top → what stands below, in order."""
    forbidden: bool = False


@dataclass(slots=True)
class Medium:
    """Bytes inside a document. `table` demands the `extra` that names that table."""

    token: str
    name: str
    content: bytes
    kind: str = "image/png"
    forbidden: bool = False
    table: str = ""


class Library:
    """The tenant. Every verb may be called while the server runs."""

    def __init__(self, clock: Clock) -> None:
        self.clock = clock
        self.lock = threading.RLock()
        self.things: dict[str, Thing] = {}
        self.spaces: dict[str, Space] = {}
        self.nodes: dict[str, Node] = {}
        self.origins: dict[str, str] = {}
        """Object → the node that it has in the wiki."""
        self.media: dict[str, Medium] = {}
        self.people: dict[str, str] = {OWNER: "林守水"}
        """open_id → name."""
        self.boards: dict[str, tuple[Sequence[str], bytes]] = {}
        self.zone = "Asia/Shanghai"
        self.below: dict[str, list[str]] = {}
        self._number = 0
        self.root = self._add("folder", "根目录", "")
        """The folder that the app was given; everything without a `folder` lands in it."""

    def folder(self, title: str, folder: Thing | None = None) -> Thing:
        return self._add("folder", title, (folder or self.root).token)

    def docx(self, title: str, blocks: Sequence[Block] = (), folder: Thing | None = None, *, loose: bool = False) -> Thing:
        """A document of `blocks` (see feishu_blocks). `loose`: in no folder, for the wiki only."""
        made = self._add("docx", title, "" if loose else (folder or self.root).token)
        made.blocks = flat(made.token, title, blocks)
        made.history[1] = made.blocks
        return made

    def other(self, kind: str, title: str, folder: Thing | None = None) -> Thing:
        """An object without a read API: mindnote, slides, or an old doc."""
        return self._add(kind, title, (folder or self.root).token)

    def file(self, title: str, content: bytes, folder: Thing | None = None) -> Thing:
        made = self._add("file", title, (folder or self.root).token)
        made.content = content
        return made

    def sheet(
        self, title: str, pages: Mapping[str, Sequence[Sequence[Any]]] | Sequence[Page], folder: Thing | None = None, *, loose: bool = False
    ) -> Thing:
        """A spreadsheet of title → rows, or of whole `Page`s. `loose`: only embedded or in the wiki."""
        made = self._add("sheet", title, "" if loose else (folder or self.root).token)
        if isinstance(pages, Mapping):
            made.pages = [Page(f"pg{n:04d}", name, [list(row) for row in rows]) for n, (name, rows) in enumerate(pages.items(), 1)]
        else:
            made.pages = list(pages)
        return made

    def bitable(self, title: str, tables: Sequence[Table], folder: Thing | None = None, *, loose: bool = False) -> Thing:
        made = self._add("bitable", title, "" if loose else (folder or self.root).token)
        made.tables = list(tables)
        return made

    def shortcut(self, thing: Thing, folder: Thing | None = None) -> Thing:
        made = self._add("shortcut", thing.title, (folder or self.root).token)
        made.target = thing.token
        return made

    def medium(self, content: bytes, name: str = "image.png", *, kind: str = "image/png", table: str = "") -> Medium:
        """Bytes to be named in an image or file block, or in a cell."""
        with self.lock:
            made = Medium(f"boxmd{self._next():08d}", name, content, kind, table=table)
            self.media[made.token] = made
            return made

    def board(self, words: Sequence[str], picture: bytes = b"") -> str:
        """A drawing: its token, to be named in a board block."""
        with self.lock:
            token = f"wbdcn{self._next():08d}"
            self.boards[token] = (words, picture)
            return token

    def space(self, name: str) -> Space:
        with self.lock:
            made = Space(str(7_000_000_000_000_000_000 + self._next()), name)
            self.spaces[made.id] = made
            return made

    def wiki(self, space: Space, title: str, blocks: Sequence[Block] = (), parent: Node | None = None) -> Node:
        """A document and its place in the wiki at once."""
        return self.node(space, self.docx(title, blocks, loose=True), parent)

    def node(self, space: Space, thing: Thing, parent: Node | None = None) -> Node:
        """A place in the wiki for an object that exists."""
        return self._place(space, thing, parent)

    def alias(self, space: Space, node: Node, parent: Node | None = None) -> Node:
        """A shortcut node: another node token, the same object."""
        made = self._place(space, self.things[node.thing], parent)
        made.shortcut, made.origin = True, node.token
        return made

    def thing(self, node: Node) -> Thing:
        return self.things[node.thing]

    def edit(self, thing: Thing, blocks: Sequence[Block], *, stamped: bool = True) -> Thing:
        """New content and revision. `stamped` false: within the second in which it was edited last."""
        with self.lock:
            thing.revision += 1
            thing.blocks = thing.history[thing.revision] = flat(thing.token, thing.title, blocks)
            return self._stamp(thing, stamped)

    def replace(self, thing: Thing, content: bytes) -> Thing:
        """New bytes of a file."""
        with self.lock:
            thing.content = content
            return self._stamp(thing, True)

    def comment(self, thing: Thing) -> Thing:
        """A comment: the revision changes, the content does not."""
        with self.lock:
            thing.revision += 1
            thing.history[thing.revision] = thing.blocks
            return thing

    def rename(self, thing: Thing, title: str, *, stamped: bool = False) -> Thing:
        """A new title: of a document also its page block, whose revision moves."""
        with self.lock:
            thing.title = title
            if thing.blocks:
                thing.revision += 1
                first = {**thing.blocks[0], "page": flat(thing.token, title, ())[0]["page"]}
                thing.blocks = thing.history[thing.revision] = [first, *thing.blocks[1:]]
            return self._stamp(thing, stamped)

    def move(self, thing: Thing, folder: Thing) -> Thing:
        """To another folder. The time of the edit stays."""
        with self.lock:
            if thing.parent:
                self.below[thing.parent].remove(thing.token)
            thing.parent = folder.token
            self.below.setdefault(folder.token, []).append(thing.token)
            return thing

    def move_node(self, node: Node, parent: Node | None = None, space: Space | None = None) -> Node:
        """To another place, with what stands below it (in the same space). The node keeps its token."""
        with self.lock:
            self.spaces[node.space].below[node.parent].remove(node)
            node.space, node.parent = (space or self.spaces[node.space]).id, parent.token if parent else ""
            self.spaces[node.space].below.setdefault(node.parent, []).append(node)
            return node

    def delete(self, *things: Thing | Node) -> None:
        """For good, and out of the wiki too. A folder takes what is in it along, a node what stands below it."""
        self._each(things, lambda thing: setattr(thing, "deleted", True))

    def trash(self, *things: Thing | Node) -> None:
        """To the bin: out of the listings."""
        self._each(things, lambda thing: setattr(thing, "trashed", True))

    def restore(self, *things: Thing | Node) -> None:
        """Out of the bin, and readable again."""

        def back(thing: Thing) -> None:
            thing.trashed = thing.deleted = thing.forbidden = thing.hidden = False

        self._each(things, back)

    def forbid(self, *things: Thing | Node) -> None:
        """The app loses its right to read; listings still name it."""
        self._each(things, lambda thing: setattr(thing, "forbidden", True))

    def hide(self, *things: Thing | Node) -> None:
        """The app loses every right: listings are silent about it too."""
        self._each(things, lambda thing: setattr(thing, "hidden", True))

    def vanish(self, folder: Thing, share: float = 0.9) -> list[Thing]:
        """That share of what is in a folder disappears from a listing that calls itself complete; nothing was deleted."""
        with self.lock:
            inside = self.inside(folder.token)
            lost = inside[: round(len(inside) * share)]
            for thing in lost:
                self.below[folder.token].remove(thing.token)
            return lost

    def inside(self, token: str) -> list[Thing]:
        """What lies in a folder, in order of creation, without what is gone."""
        with self.lock:
            return [self.things[child] for child in self.below.get(token, ()) if not self.things[child].gone]

    def children(self, space: Space, parent: str) -> list[Node]:
        """Places below a node ("" for the top), without those whose document is gone."""
        with self.lock:
            return [node for node in space.below.get(parent, ()) if not self.things[node.thing].gone]

    def find_node(self, token: str) -> Node | None:
        """By node token, or by the token of the object."""
        with self.lock:
            return self.nodes.get(token) or self.nodes.get(self.origins.get(token, ""))

    def _each(self, things: Iterable[Thing | Node], change: Callable[[Thing], None]) -> None:
        with self.lock:
            for one in things:
                thing = self.things[one.thing] if isinstance(one, Node) else one
                change(thing)
                if isinstance(one, Node):
                    self._each([node for node in self.spaces[one.space].below.get(one.token, ()) if not node.shortcut], change)
                if thing.type == "folder":
                    self._each([self.things[child] for child in self.below.get(thing.token, ())], change)

    def _stamp(self, thing: Thing, stamped: bool) -> Thing:
        if stamped:
            thing.edited = self.clock.now()
        return thing

    def _place(self, space: Space, thing: Thing, parent: Node | None) -> Node:
        with self.lock:
            made = Node(f"wikcn{self._next():08d}", space.id, thing.token, parent.token if parent else "", created=self.clock.now())
            space.below.setdefault(made.parent, []).append(made)
            self.nodes[made.token] = made
            self.origins.setdefault(thing.token, made.token)
            return made

    def _add(self, kind: str, title: str, parent: str) -> Thing:
        with self.lock:
            now = self.clock.now()
            made = Thing(f"{PREFIX[kind]}{self._next():08d}", kind, title, parent, now, now)
            self.things[made.token] = made
            if parent:
                self.below.setdefault(parent, []).append(made.token)
            return made

    def _next(self) -> int:
        self._number += 1
        return self._number
