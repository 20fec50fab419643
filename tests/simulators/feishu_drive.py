"""Drive and wiki of the simulated Feishu: folders, metas, spaces, nodes, files and media."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any

import orjson

from tests.simulators.feishu_gate import fine, refused
from tests.simulators.feishu_model import Node, Space, Thing
from tests.simulators.served import Answer, Call

if TYPE_CHECKING:
    from tests.simulators.feishu import Feishu

DRIVE, WIKI, FILES = "drive:drive:readonly", "wiki:wiki:readonly", "drive:file:download"


class Drive:
    """Handlers of listings, metas and downloads."""

    def __init__(self, feishu: Feishu) -> None:
        self.feishu, self.library = feishu, feishu.library

    def routes(self) -> list[tuple[Any, ...]]:
        return [
            ("drive.list", "GET", "/drive/v1/files", self.files, DRIVE),
            ("drive.metas", "POST", "/drive/v1/metas/batch_query", self.metas, DRIVE),
            ("media", "GET", "/drive/v1/medias/:token/download", self.media, "docs:document.media:download"),
            ("file", "GET", "/drive/v1/files/:token/download", self.file, FILES),
            ("wiki.spaces", "GET", "/wiki/v2/spaces", self.spaces, WIKI),
            ("wiki.node", "GET", "/wiki/v2/spaces/get_node", self.node, WIKI),
            ("wiki.spaces", "GET", "/wiki/v2/spaces/:space", self.one_space, WIKI),
            ("wiki.nodes", "GET", "/wiki/v2/spaces/:space/nodes", self.nodes, WIKI),
        ]

    def files(self, call: Call, _found: re.Match[str]) -> Answer:
        token = call.query.get("folder_token", "")
        folder = self.library.things.get(token) if token else self.library.root
        if folder is None or folder.type != "folder":
            return refused(1061003, "not found.", 404)
        if folder.gone:
            return refused(1061007, "file has been delete.", 404)
        if folder.barred:
            return refused(1061004, "forbidden.", 403)
        inside = self.library.inside(folder.token)
        by = "created" if call.query.get("order_by") == "CreatedTime" else "edited"
        inside = sorted(inside, key=lambda thing: getattr(thing, by), reverse=call.query.get("direction", "DESC") == "DESC")
        if not token:
            rows = [self.entry(thing) for thing in inside if thing.type != "shortcut" and not thing.hidden]
            return fine({"files": rows, "has_more": False})
        page = self.feishu.pager.cut(call, [(thing, self.entry(thing)) for thing in inside], 200, default=100)
        if page is None:
            return refused(1061002, "params error.")
        data: dict[str, Any] = {"files": [row for thing, row in page.rows if not thing.hidden], "has_more": page.more}
        return fine(data | ({"next_page_token": page.token} if page.more else {}))

    def entry(self, thing: Thing) -> dict[str, Any]:
        row: dict[str, Any] = {
            "token": thing.token,
            "name": thing.title,
            "type": thing.type,
            "parent_token": thing.parent,
            "url": self.url(thing),
            "created_time": str(int(thing.created)),
            "modified_time": str(int(thing.edited)),
            "owner_id": thing.owner,
        }
        if thing.type == "shortcut":
            row["shortcut_info"] = {"target_type": self.library.things[thing.target].type, "target_token": thing.target}
        return row

    @staticmethod
    def url(thing: Thing) -> str:
        place = {"folder": "drive/folder", "bitable": "base", "sheet": "sheets", "mindnote": "mindnotes", "doc": "docs"}.get(thing.type, thing.type)
        return f"https://waterworks.feishu.cn/{place}/{thing.target or thing.token}"

    def metas(self, call: Call, _found: re.Match[str]) -> Answer:
        given = orjson.loads(call.body or b"{}")
        asked = given.get("request_docs", [])
        if not 1 <= len(asked) <= 200:
            return refused(1061002, "params error.")
        metas: list[dict[str, Any]] = []
        failed: list[dict[str, Any]] = []
        for one in asked:
            token, kind = one["doc_token"], one["doc_type"]
            thing = self._meant(token, kind)
            if kind not in ("doc", "docx", "sheet", "bitable", "mindnote", "file", "wiki", "folder", "slides"):
                failed.append({"token": token, "code": 970002})
            elif thing is None or thing.gone or (kind != "wiki" and thing.type != kind):
                failed.append({"token": token, "code": 970005})
            elif thing.barred:
                failed.append({"token": token, "code": 970003})
            else:
                metas.append(self._meta(thing, token, kind, bool(given.get("with_url"))))
        return fine({"metas": metas, **({"failed_list": failed} if failed else {})})

    def _meant(self, token: str, kind: str) -> Thing | None:
        node = self.library.find_node(token) if kind == "wiki" else None
        return self.library.things.get(node.thing if node else token)

    def _meta(self, thing: Thing, token: str, kind: str, with_url: bool) -> dict[str, Any]:
        row = {
            "doc_token": token,
            "doc_type": kind,
            "title": thing.title,
            "owner_id": thing.owner,
            "create_time": str(int(thing.created)),
            "latest_modify_user": thing.owner,
            "latest_modify_time": str(int(thing.edited)),
            "sec_label_name": "",
        }
        return row | ({"url": self.url(thing)} if with_url else {})

    def spaces(self, call: Call, _found: re.Match[str]) -> Answer:
        listed = [space for space in self.library.spaces.values() if not space.forbidden]
        page = self.feishu.pager.cut(call, [self.described(space) for space in listed], 50, default=20)
        if page is None:
            return refused(131002, "param err: page_token is invalid")
        return fine({"items": page.rows, "has_more": page.more, "page_token": page.token})

    def one_space(self, _call: Call, found: re.Match[str]) -> Answer:
        space = self._space(found["space"])
        return space if isinstance(space, Answer) else fine({"space": self.described(space)})

    @staticmethod
    def described(space: Space) -> dict[str, Any]:
        return {"space_id": space.id, "name": space.name, "description": "", "space_type": "team", "visibility": "private"}

    def _space(self, number: str) -> Space | Answer:
        space = self.library.spaces.get(number)
        if space is None:
            return refused(131005, "not found: space not found")
        return refused(131006, "permission denied: no space permission") if space.forbidden else space

    def nodes(self, call: Call, found: re.Match[str]) -> Answer:
        space = self._space(found["space"])
        if isinstance(space, Answer):
            return space
        parent = call.query.get("parent_node_token", "")
        above = self.library.nodes.get(parent) if parent else None
        if parent and (above is None or above.space != space.id or self.library.thing(above).gone):
            return refused(131005, "not found: parent node not found")
        if above is not None and self.library.thing(above).hidden:
            return refused(131006, "permission denied: no parent node permission")
        page = self.feishu.pager.cut(call, [(node, self.place(node)) for node in self.library.children(space, parent)], 50, default=20)
        if page is None:
            return refused(131002, "param err: page_token is invalid")
        rows = [row for node, row in page.rows if not self.library.thing(node).hidden]
        return fine({"items": rows, "has_more": page.more, "page_token": page.token})

    def node(self, call: Call, _found: re.Match[str]) -> Answer:
        node = self.library.find_node(call.query.get("token", ""))
        if node is None or self.library.thing(node).gone:
            return refused(131005, "not found: document is not in wiki")
        if self.library.thing(node).barred:
            return refused(131006, "permission denied: node permission denied")
        return fine({"node": self.place(node)})

    def place(self, node: Node) -> dict[str, Any]:
        thing, space = self.library.thing(node), self.library.spaces[node.space]
        origin = self.library.nodes.get(node.origin, node)
        return {
            "space_id": space.id,
            "node_token": node.token,
            "obj_token": thing.token,
            "obj_type": thing.type,
            "parent_node_token": node.parent,
            "node_type": "shortcut" if node.shortcut else "origin",
            "origin_node_token": origin.token,
            "origin_space_id": origin.space,
            "has_child": bool(self.library.children(space, node.token)),
            "title": thing.title,
            "obj_create_time": str(int(thing.created)),
            "obj_edit_time": str(int(thing.edited)),
            "node_create_time": str(int(node.created)),
            "creator": thing.owner,
            "owner": thing.owner,
            "url": f"https://waterworks.feishu.cn/wiki/{node.token}",
        }

    def media(self, call: Call, found: re.Match[str]) -> Answer:
        medium = self.library.media.get(found["token"])
        if medium is None:
            return refused(1061003, "not found.", 404)
        if medium.forbidden or (medium.table and medium.table not in call.query.get("extra", "")):
            return Answer(403)
        return download(call, medium.content, medium.name, medium.kind)

    def file(self, call: Call, found: re.Match[str]) -> Answer:
        thing = self.library.things.get(found["token"])
        if thing is None or thing.type != "file":
            return refused(1061003, "not found.", 404)
        if thing.gone:
            return refused(1061007, "file has been delete.", 404)
        if thing.barred or thing.closed:
            return refused(1061004, "forbidden.", 403)
        return download(call, thing.content, thing.title, "application/octet-stream")


def download(call: Call, content: bytes, name: str, kind: str) -> Answer:
    """Bytes with their name; a Range of one piece is honoured."""
    from urllib.parse import quote

    headers = {"content-type": kind, "Content-Disposition": f"attachment; filename*=UTF-8''{quote(name)}", "accept-ranges": "bytes"}
    wanted = re.fullmatch(r"bytes=(\d+)-(\d*)", call.headers.get("range", ""))
    if wanted is None:
        return Answer(200, content, headers)
    first, last = int(wanted[1]), min(int(wanted[2] or len(content)), len(content) - 1)
    if first >= len(content):
        return Answer(416, b"", {"content-range": f"bytes */{len(content)}"})
    return Answer(206, content[first : last + 1], headers | {"content-range": f"bytes {first}-{last}/{len(content)}"})
