"""What is to be listed: folders, wiki spaces and their nodes, single links; one at a time, each to its end."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from urllib.parse import urlsplit

from pipeline.errors import BadRequest, NotFound
from pipeline.load.feishu.answers import Json, table
from pipeline.load.feishu.client import FeishuClient

FOLDER_PAGE, NODE_PAGE, SPACE_PAGE = 200, 50, 50
"""The most that a page of each listing gives."""
_LINKED = {
    "docx": "docx",
    "docs": "doc",
    "doc": "doc",
    "sheets": "sheet",
    "sheet": "sheet",
    "base": "bitable",
    "bitable": "bitable",
    "file": "file",
    "mindnotes": "mindnote",
    "slides": "slides",
    "wiki": "wiki",
}
_TOKEN = re.compile(r"[A-Za-z0-9_-]{1,128}")
_CONTROL = re.compile(r"[\x00-\x1f\x7f-\x9f\ud800-\udfff]")


@dataclass(frozen=True, slots=True)
class Place:
    """One listing; also what stands in a mark."""

    kind: str
    """folder, space, node, link."""
    token: str
    path: str = ""
    of: str = ""
    """A node's space, a link's kind of object."""
    tries: int = 0

    @property
    def scope(self) -> str:
        return f"{self.kind}:{self.token}"

    def dump(self) -> list[str | int]:
        return [self.kind, self.token, self.path, self.of, self.tries]

    @classmethod
    def load(cls, held: Sequence[object]) -> Place:
        kind, token, path, of, tries = held
        return cls(str(kind), str(token), str(path), str(of), int(str(tries)))


@dataclass(slots=True)
class Entry:
    """One object as a listing shows it."""

    kind: str
    token: str
    title: str
    path: str
    scope: str
    url: str = ""
    edited: int = 0
    """Seconds since the epoch; 0 when the listing does not say."""
    created: int = 0
    real: bool = True
    """False for a shortcut: another way to the same object."""

    @property
    def key(self) -> str:
        return f"{self.kind}:{self.token}"


@dataclass(slots=True)
class Found:
    """What a listing has given so far; stays where it fails half way."""

    entries: list[Entry]
    below: list[Place]


def list_place(client: FeishuClient, place: Place, found: Found) -> None:
    """Everything directly in a place. Raises by what the API says."""
    if place.kind == "link":
        _link(client, place, found)
        return
    names = _Names(place.path)
    for rows in _folder_pages(client, place) if place.kind == "folder" else _node_pages(client, place):
        for row in rows:
            if place.kind == "folder":
                _file(row, place, names, found)
            else:
                _node(row, place, names, found)
    names.settle()


def spaces(client: FeishuClient) -> Iterator[Place]:
    """Every wiki space that the app may see."""
    for rows in client.pages("wiki", "/wiki/v2/spaces", {"page_size": SPACE_PAGE}, rows="items", patient=True):
        for row in rows:
            if row.get("space_id"):
                yield Place("space", str(row["space_id"]), safe(str(row.get("name") or row["space_id"])))


def space(client: FeishuClient, space_id: str) -> Place:
    """One space with its name; its number where that cannot be had."""
    try:
        answer = client.patient("wiki", f"/wiki/v2/spaces/{space_id}")
    except (BadRequest, NotFound):
        return Place("space", space_id, safe(space_id))
    return Place("space", space_id, safe(str(table(answer.get("space")).get("name") or space_id)))


def link(address: str) -> Place:
    """A link, or ``docx:TOKEN``. Raises BadRequest for what is none."""
    kind, _, token = address.partition(":")
    parts = urlsplit(address) if "://" in address else None
    if parts is not None:
        steps = [step for step in parts.path.split("/") if step]
        if steps[:2] == ["drive", "folder"]:
            steps = ["folder", *steps[2:]]
        kind, token = (steps[0], steps[1]) if len(steps) >= 2 else ("", "")
    if kind == "folder" and _TOKEN.fullmatch(token):
        return Place("folder", token)
    if kind not in _LINKED or not _TOKEN.fullmatch(token):
        raise BadRequest(
            "one of the links is none to a document, sheet, base, file, wiki page or folder",
            hint="Copy it from the browser.",
            pointer="/options/links",
        )
    return Place("link", token, of=_LINKED[kind])


def token_of(given: str, *, pointer: str) -> str:
    """A token, or the last part of an address that ends in one. Raises BadRequest."""
    token = (urlsplit(given).path if "://" in given else given).rstrip("/").rpartition("/")[2]
    if not _TOKEN.fullmatch(token):
        raise BadRequest(f"{given[:80]!r} holds no token", hint="Give the last part of the address in the browser.", pointer=pointer)
    return token


def safe(name: str) -> str:
    """A name as one step of a path: no separators, no control characters, not a step up."""
    plain = _CONTROL.sub("", name).replace("/", "\N{FULLWIDTH SOLIDUS}").replace("\\", "\N{FULLWIDTH REVERSE SOLIDUS}").strip()
    if plain.strip(".") == "":
        plain = plain.replace(".", "\N{FULLWIDTH FULL STOP}")
    return plain[:200] or "untitled"


class _Names:
    """Paths of the things in one place; those whose names differ in nothing but case get a part of their token."""

    def __init__(self, path: str) -> None:
        self._path = path
        self._held: dict[str, list[Entry]] = {}

    def of(self, name: str) -> str:
        return f"{self._path}/{safe(name)}".lstrip("/")[:1900]

    def add(self, entry: Entry) -> Entry:
        self._held.setdefault(entry.path.casefold(), []).append(entry)
        return entry

    def settle(self) -> None:
        for entries in self._held.values():
            if len({entry.key for entry in entries}) > 1:
                for entry in entries:
                    stem, dot, end = entry.path.rpartition(".")
                    short = bool(dot) and len(end) <= 5 and "/" not in end
                    entry.path = f"{stem} ({entry.token[-8:]}).{end}" if short else f"{entry.path} ({entry.token[-8:]})"


def _folder_pages(client: FeishuClient, place: Place) -> Iterator[list[Json]]:
    params: dict[str, str | int] = {"folder_token": place.token, "page_size": FOLDER_PAGE, "order_by": "CreatedTime", "direction": "ASC"}
    return client.pages("files", "/drive/v1/files", params, rows="files", patient=True)


def _node_pages(client: FeishuClient, place: Place) -> Iterator[list[Json]]:
    number = place.token if place.kind == "space" else place.of
    params: dict[str, str | int] = {"page_size": NODE_PAGE, **({"parent_node_token": place.token} if place.kind == "node" else {})}
    return client.pages("wiki", f"/wiki/v2/spaces/{number}/nodes", params, rows="items", patient=True)


def _file(row: Json, place: Place, names: _Names, found: Found) -> None:
    kind, token, name = str(row.get("type") or ""), str(row.get("token") or ""), str(row.get("name") or "")
    real = kind != "shortcut"
    if not real:
        target = table(row.get("shortcut_info"))
        kind, token = str(target.get("target_type") or ""), str(target.get("target_token") or "")
    if not token or not kind:
        return
    if kind == "folder":
        found.below.append(Place("folder", token, names.of(name)))
        return
    edited = 0 if not real else seconds(row.get("modified_time"))
    entry = Entry(
        kind, token, name, names.of(name), place.scope, str(row.get("url") or "") if real else "", edited, seconds(row.get("created_time")), real
    )
    found.entries.append(names.add(entry))


def _node(row: Json, place: Place, names: _Names, found: Found) -> None:
    kind, token, title = str(row.get("obj_type") or ""), str(row.get("obj_token") or ""), str(row.get("title") or "")
    real = row.get("node_type") != "shortcut"
    node = str(row.get("node_token") or "")
    if real and row.get("has_child") and node:
        of = place.token if place.kind == "space" else place.of
        found.below.append(Place("node", node, names.of(title), of))
    if token and kind:
        entry = Entry(kind, token, title, names.of(title), place.scope, str(row.get("url") or ""), seconds(row.get("obj_edit_time")), 0, real)
        entry.created = seconds(row.get("obj_create_time"))
        found.entries.append(names.add(entry))


def _link(client: FeishuClient, place: Place, found: Found) -> None:
    if place.of != "wiki":
        found.entries.append(Entry(place.of, place.token, "", "", place.scope))
        return
    answer = client.patient("wiki", "/wiki/v2/spaces/get_node", {"token": place.token})
    node = table(answer.get("node"))
    if not node:
        raise NotFound(f"there is no wiki page {place.token}")
    below = Found(found.entries, [])
    _node(node, Place("space", "", "", ""), _Names(""), below)
    for entry in found.entries:
        entry.scope = place.scope


def seconds(value: object) -> int:
    """A moment in whole seconds; the API gives text."""
    text = str(value or "")
    return int(text) if text.isdigit() else 0
