"""One object as it is kept: documents as blocks, sheets and bases as grids, files as they are, old documents as an export."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from datetime import UTC, datetime

from pipeline.contracts import Asset, CrawledDocument, RawDocument, Scalar, SourceItem
from pipeline.errors import (
    BadRequest,
    Forbidden,
    Gone,
    NotFound,
    PipelineError,
    QuotaExhausted,
    RateLimited,
    Skipped,
    TooLarge,
    Unauthorised,
    Unavailable,
)
from pipeline.identity import content_hash
from pipeline.load.exchange import kept_bytes
from pipeline.load.feishu import blocks, grids
from pipeline.load.feishu.client import FeishuClient
from pipeline.load.feishu.exports import export
from pipeline.load.feishu.routes import BITABLE, BLOCKS, DOCX, SHEET, UNREADABLE

ASSET_S = 30 * 86_400.0
"""How long the outcome of an image or attachment is remembered: its token never gets other bytes."""
REFUSED_S = 3600.0
MOST_ASSETS = 500
"""Images and attachments of one document that are looked at."""
EMBEDS = "+embeds"
"""In a revision: what lives elsewhere is looked at again by every scan."""


class Fetcher:
    """Downloads of one source.

    Args:
        route: ``blocks``, or ``export`` for documents as DOCX with blocks where that is refused for size.
        media: whether each image and attachment is asked for.
    """

    def __init__(self, client: FeishuClient, *, max_bytes: int, route: str = "blocks", media: bool = True) -> None:
        self._client, self._max_bytes = client, max_bytes
        self._route, self._media = route, media

    def fetch(self, item: SourceItem) -> RawDocument:
        """See `Connector.fetch`."""
        kind, _, token = item.key.partition(":")
        if kind in UNREADABLE:
            raise Skipped(f"{UNREADABLE[kind]} cannot be read through Feishu's interface", code="no_interface")
        try:
            if kind == "docx":
                return self._docx(item, token)
            if kind == "sheet":
                return self._kept(item, {"title": item.title, **grids.sheet(self._client, token)}, SHEET)
            if kind == "bitable":
                return self._bitable(item, token)
            if kind == "file":
                data, media_type = self._client.bytes("download", f"/drive/v1/files/{token}/download", max_bytes=self._max_bytes)
                return self._raw(item, data, "" if media_type == "application/octet-stream" else media_type)
            if kind == "doc":
                return self._raw(item, export(self._client, "doc", token, "docx", max_bytes=self._max_bytes), DOCX)
        except NotFound as error:
            raise Gone(f"{item.key} is no longer in Feishu") from error
        raise Skipped(f"objects of the kind {kind!r} cannot be read through Feishu's interface", code="no_interface")

    # ------------------------------------------------------------ documents

    def _docx(self, item: SourceItem, token: str) -> RawDocument:
        if self._route == "export":
            try:
                return self._raw(item, export(self._client, "docx", token, "docx", max_bytes=self._max_bytes), DOCX)
            except TooLarge:
                pass
        content = blocks.Content(self._client, token)
        try:
            kept = content.gather()
        except (Forbidden, BadRequest) as error:
            if isinstance(error, Forbidden) and error.code != "missing_scope":
                raise
            return self._otherwise(item, token, error)
        found = [(name, token_, kind, "") for token_, name, kind in content.files]
        found += [(name, token_, "file", extra) for token_, name, extra in content.more]
        if content.embeds and item.revision:
            item = replace(item, revision=f"{item.revision}{EMBEDS}")
        return self._kept(item, kept, BLOCKS, self._assets(token, found))

    def _otherwise(self, item: SourceItem, token: str, error: PipelineError) -> RawDocument:
        """Where the blocks cannot be had at all: the vendor's Markdown, the bare text, an export. Raises `error` when there is none."""
        for get in (blocks.markdown, blocks.raw_text):
            try:
                text = get(self._client, token)
            except (Forbidden, BadRequest, NotFound):
                continue
            if text.strip():
                return self._raw(item, text.encode(), "text/markdown" if get is blocks.markdown else "text/plain", charset="utf-8")
        try:
            return self._raw(item, export(self._client, "docx", token, "docx", max_bytes=self._max_bytes), DOCX)
        except (Forbidden, BadRequest, NotFound, TooLarge):
            raise error from None

    def _bitable(self, item: SourceItem, token: str) -> RawDocument:
        kept, counts, files = grids.base(self._client, token, before=_counts(item.metadata.get("etag")))
        found = [(name, token_, "file", extra) for token_, name, extra in files]
        etag = ",".join(f"{table}={number}" for table, number in sorted(counts.items()))
        return self._kept(item, {"title": item.title, **kept}, BITABLE, self._assets(token, found), etag=etag)

    # ------------------------------------------------------------ images and attachments

    def _assets(self, document: str, found: Sequence[tuple[str, str, str, str]]) -> tuple[Asset, ...]:
        """An outcome for each; none of them keeps its document waiting."""
        assets: list[Asset] = []
        for name, token, kind, extra in list(dict.fromkeys(found))[:MOST_ASSETS]:
            if self._media:
                state, detail = self._asset(token, extra)
            else:
                state, detail = "external", ""
            assets.append(Asset(name, token, kind, state, detail))
        return tuple(assets)

    def _asset(self, token: str, extra: str) -> tuple[str, str]:
        def ask() -> tuple[str, float]:
            params = {"extra": extra} if extra else None
            try:
                self._client.bytes("media", f"/drive/v1/medias/{token}/download", max_bytes=self._max_bytes, params=params, first_byte=True)
            except Forbidden as error:
                return f"forbidden {error.detail}", REFUSED_S
            except NotFound:
                return "failed Feishu has no such file", REFUSED_S
            except TooLarge:
                pass
            return "external", ASSET_S

        try:
            state, _, detail = self._client.around.shared(f"asset.{token}", ask).partition(" ")
        except Unauthorised:
            raise
        except (RateLimited, QuotaExhausted, Unavailable) as error:
            return "pending", error.detail
        except PipelineError as error:
            return "failed", error.detail
        return state, detail

    # ------------------------------------------------------------ the document

    def _kept(self, item: SourceItem, kept: Mapping[str, object], media_type: str, assets: tuple[Asset, ...] = (), *, etag: str = "") -> RawDocument:
        return self._raw(item, kept_bytes(item.key, kept), media_type, assets, etag=etag, charset="utf-8")

    def _raw(
        self, item: SourceItem, data: bytes, media_type: str, assets: tuple[Asset, ...] = (), *, etag: str = "", charset: str = ""
    ) -> RawDocument:
        if len(data) > self._max_bytes:
            raise TooLarge(f"{item.key} has {len(data):,} bytes", hint="Raise DUJIANG_MAX_FILE_MB, or leave it out.")
        facts: dict[str, Scalar | list[str]] = {**item.metadata}
        facts.pop("etag", None)
        if etag:
            facts["etag"] = etag
        text = data.decode("utf-8", "replace") if charset else ""
        now = datetime.fromtimestamp(self._client.around.now(), UTC)
        crawled = CrawledDocument(item.url, item.title, text, len(text), now, facts)
        return RawDocument(replace(item, media_type=media_type), data, content_hash(data), media_type, charset, crawled, assets)


def _counts(held: object) -> dict[str, int]:
    """Records of each table when it was read last, from what was remembered of it."""
    found: dict[str, int] = {}
    for part in str(held or "").split(","):
        table, _, number = part.partition("=")
        if number.isdigit():
            found[table] = int(number)
    return found
