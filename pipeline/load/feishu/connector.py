"""The connector: what a source of the kind ``feishu`` is told, checked, scanned, fetched and asked."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial

from pipeline.contracts import RawDocument, SourceItem
from pipeline.contracts.sources import Json, Presence, ScanEvent, ScopeFailed, SourceCheck, SourceSpec
from pipeline.errors import BadRequest, Cancelled, Forbidden, NotFound, PipelineError, Retryable, Unauthorised
from pipeline.load.feishu.client import FeishuClient
from pipeline.load.feishu.content import Fetcher
from pipeline.load.feishu.discovery import Walk, metas
from pipeline.load.feishu.events import Ear
from pipeline.load.feishu.places import Found, Place, link, list_place, space, spaces, token_of
from pipeline.protocols import Connector, Surroundings

BASE_URL = "https://open.feishu.cn"
BRANDS: Mapping[str, str] = {"feishu": BASE_URL, "lark": "https://open.larksuite.com"}
ALL = "all"
NO_RIGHT, ABSENT = 970003, 970005


def create(spec: SourceSpec, around: Surroundings) -> Connector:
    """Raises BadRequest for options that make no sense."""
    given = {name: value.strip() for name, value in spec.options.items()}
    secrets = spec.secrets
    base_url = BRANDS.get(given.get("base_url") or "feishu", given.get("base_url", ""))
    app_id = given.get("app_id", "")
    client = FeishuClient(base_url, app_id, secrets.get("app_secret", ""), around, share=_share(given.get("rate_percent", "")))
    route = _choice(given, "content", ("blocks", "export"))
    media = _choice(given, "media", ("ask", "leave")) == "ask"
    fetcher = Fetcher(client, max_bytes=spec.max_bytes, route=route, media=media)
    folders = [Place("folder", token_of(part, pointer="/options/folder_token")) for part in _parts(given, "folder_token")]
    places = [*folders, *(link(part) for part in _parts(given, "links"))]
    wikis = [part if part == ALL else token_of(part, pointer="/options/wiki_space") for part in _parts(given, "wiki_space")]
    if not places and not wikis:
        raise BadRequest(
            "a source of kind 'feishu' needs a folder, a wiki space or links",
            hint="Give --folder-token, --wiki-space or --links; the root folder is no choice, since its listing is never complete.",
            pointer="/options/folder_token",
            code="missing_option",
        )
    ear = Ear(around, app_id, secrets.get("encrypt_key", ""), secrets.get("verification_token", ""))
    return Feishu(client, fetcher, ear, places, wikis)


def _parts(given: Mapping[str, str], name: str) -> list[str]:
    return [part.strip() for part in given.get(name, "").replace("\n", ",").split(",") if part.strip()]


def _share(given: str) -> float:
    if not given:
        return 1.0
    if not given.isdigit() or not 1 <= int(given) <= 10_000:
        raise BadRequest(f"rate_percent is {given[:20]!r}, not a number from 1 to 10000", hint="Give a share.", pointer="/options/rate_percent")
    return int(given) / 100


def _choice(given: Mapping[str, str], name: str, known: Sequence[str]) -> str:
    value = given.get(name) or known[0]
    if value not in known:
        raise BadRequest(f"{name} is {value[:40]!r}", hint=f"Use {' or '.join(known)}.", pointer=f"/options/{name}")
    return value


class Feishu:
    """Identity is kind and token of the object: nodes, folders and titles change."""

    def __init__(self, client: FeishuClient, fetcher: Fetcher, ear: Ear, places: Sequence[Place], wikis: Sequence[str]) -> None:
        self._client, self._fetcher, self._ear = client, fetcher, ear
        self._places, self._wikis = places, wikis

    # ------------------------------------------------------------ validate

    def validate(self) -> list[SourceCheck]:
        """Tries each place, and each route that reading will take, with one call."""
        try:
            self._client.try_credentials()
        except Unauthorised as error:
            return [SourceCheck("credentials", False, error.detail, error.hint)]
        checks = [SourceCheck("credentials", True, "the app's credentials are good")]
        found = Found([], [])
        try:
            places = self._roots()
        except Unauthorised as error:
            return [SourceCheck("credentials", False, error.detail, error.hint)]
        except (Forbidden, NotFound, BadRequest) as error:
            checks.append(SourceCheck("wiki", False, error.detail, error.hint))
            places = list(self._places)
        for place in places:
            before = len(found.entries) + len(found.below)
            checks.append(self._tried(place.scope, partial(list_place, self._client, place, found)))
            if checks[-1].ok:
                number = len(found.entries) + len(found.below) - before
                checks[-1] = SourceCheck(place.scope, True, f"{number} objects at the top")
        return [*checks, *self._routes(found)]

    def _routes(self, found: Found) -> Iterator[SourceCheck]:
        """One object of each kind that the top level holds, and the metadata of one."""
        of_kind = {entry.kind: entry.token for entry in reversed(found.entries)}
        if of_kind:
            one = next(iter(of_kind.items()))
            yield self._tried("metadata", lambda: metas(self._client, [one]))
        for kind in sorted(of_kind):
            path = _looked_at(kind, of_kind[kind])
            if path is not None:
                yield self._tried(f"content of {kind}", partial(self._client.get, *path))

    def _tried(self, name: str, act: Callable[[], object]) -> SourceCheck:
        try:
            act()
        except (Cancelled, Retryable):
            raise
        except NotFound as error:
            return SourceCheck(name, False, error.detail, "Check the token.")
        except PipelineError as error:
            return SourceCheck(name, False, error.detail, error.hint)
        return SourceCheck(name, True)

    # ------------------------------------------------------------ scan and fetch

    def scan(self, checkpoint: Json) -> Iterator[ScanEvent]:
        roots: Sequence[Place] = ()
        if "frontier" not in checkpoint:
            try:
                roots = self._roots()
            except (Forbidden, NotFound, BadRequest) as error:
                yield ScopeFailed("wiki", error.code, error.detail, error.hint)
                roots = self._places
        yield from Walk(self._client, roots, checkpoint).events()

    def _roots(self) -> list[Place]:
        """Folders and links as given, wiki spaces by their names."""
        found = list(self._places)
        for name in self._wikis:
            found += spaces(self._client) if name == ALL else [space(self._client, name)]
        return found

    def fetch(self, item: SourceItem) -> RawDocument:
        return self._fetcher.fetch(item)

    # ------------------------------------------------------------ single objects

    def probe(self, keys: Sequence[str]) -> Mapping[str, Presence]:
        """By metadata. "Not found" there is also said of a wrong kind, so that the object itself is asked before it counts as gone."""
        found = dict.fromkeys(keys, Presence.UNKNOWN)
        objects = [(kind, token) for kind, _, token in (key.partition(":") for key in keys) if token]
        for start in range(0, len(objects), 200):
            try:
                alive, failed = metas(self._client, objects[start : start + 200])
            except (Unauthorised, Cancelled):
                raise
            except PipelineError:
                continue
            tokens = {str(row.get("doc_token")) for row in alive}
            for kind, token in objects[start : start + 200]:
                if token in tokens:
                    found[f"{kind}:{token}"] = Presence.ALIVE
                elif failed.get(token) == NO_RIGHT:
                    found[f"{kind}:{token}"] = Presence.FORBIDDEN
                elif failed.get(token) == ABSENT:
                    found[f"{kind}:{token}"] = self._asked(kind, token)
        return found

    def _asked(self, kind: str, token: str) -> Presence:
        path = _looked_at(kind, token)
        try:
            if path is not None:
                self._client.get(*path)
            elif kind == "file":
                self._client.bytes("download", f"/drive/v1/files/{token}/download", max_bytes=1_000_000, first_byte=True)
            else:
                return Presence.UNKNOWN
        except NotFound:
            return Presence.GONE
        except Forbidden:
            return Presence.FORBIDDEN
        except (Unauthorised, Cancelled):
            raise
        except PipelineError:
            return Presence.UNKNOWN
        return Presence.ALIVE

    # ------------------------------------------------------------ events

    def decode_hint(self, headers: Mapping[str, str], body: bytes) -> list[str]:
        """See `Connector`."""
        return self._ear.keys(headers, body)

    def answer_hint(self, headers: Mapping[str, str], body: bytes) -> bytes:
        """See `Connector`."""
        return self._ear.answer(body)


def _looked_at(kind: str, token: str) -> tuple[str, str] | None:
    """(route, path) of the cheapest call that only the object itself answers."""
    return {
        "docx": ("docx", f"/docx/v1/documents/{token}"),
        "sheet": ("sheets", f"/sheets/v3/spreadsheets/{token}/sheets/query"),
        "bitable": ("bitable", f"/bitable/v1/apps/{token}/tables"),
    }.get(kind)
