"""Making collections, and taking documents in: hashing, recognising what is unchanged, keeping uploads."""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import PurePosixPath

from pipeline import identity, parse
from pipeline.contracts import Lane, Scalar, SourceItem, Stage
from pipeline.errors import BadRequest, Conflict, PipelineError, Skipped
from pipeline.load import files as loading
from pipeline.settings import mask
from workers.artifacts import Entry
from workers.ledger import catalog, intake
from workers.ledger.generations import MARK
from workers.ledger.intake import Submission
from workers.ledger.work import CollectionRow, Ref
from workers.runtime import Runtime
from workers.views import Incoming

SLICE = 256
SLICE_BYTES = 32_000_000
NAME = re.compile(r"[^\W_][\w.-]{0,127}")


def create(
    runtime: Runtime, name: str, *, chunker: str = "", embedder: str = "", tenant: str = "default", options: Mapping[str, str] | None = None
) -> CollectionRow:
    """The collection of that name, made when missing. Options left empty follow the settings, or what exists.

    Raises Conflict when it exists with other options, BadRequest for a name that cannot be one.
    """
    if not NAME.fullmatch(name):
        raise BadRequest(
            f"{name!r} is no collection name", hint="Use letters, digits, '-', '_' and '.', beginning with a letter or digit.", pointer="/name"
        )
    present = {row.name: row for row in catalog.every(runtime.db, tenant)}.get(name)
    settings = runtime.settings
    if present is not None:
        check_store(runtime, present)
        chunker, embedder = chunker or present.chunker, embedder or present.embedder
    spec = embedder or settings.embedder
    profile = runtime.profile if spec == settings.embedder else runtime.profile_of(spec)
    runtime.check_chunker(chunker or settings.chunker, dict(options or {}))
    return catalog.create(
        runtime.db,
        {
            "id": identity.fingerprint({"tenant": tenant, "collection": name}),
            "tenant": tenant,
            "name": name,
            "chunker": chunker or settings.chunker,
            "chunk_options": json.dumps(dict(options or {}), sort_keys=True),
            "tokenizer": present.tokenizer if present else settings.tokenizer,
            "embedder": spec,
            "embedder_revision": profile.revision,
            "dimension": profile.dimension,
            "store_url": pinned(runtime),
        },
    )


def pinned(runtime: Runtime) -> str:
    """The store as the ledger remembers it: passwords masked, and relative to the data folder where it lies in it."""
    url = str(mask("store_url", runtime.settings.store_url))
    return url.replace(runtime.settings.home, "HOME") if runtime.settings.home else url


def check_store(runtime: Runtime, row: CollectionRow) -> None:
    """Raises Conflict when the collection was built in another store than the settings name."""
    if row.store_url != pinned(runtime):
        raise Conflict(
            f"collection {row.name!r} lives in {row.store_url}, not in {pinned(runtime)}",
            hint="Set DUJIANG_STORE_URL back, or use another data folder.",
            code="store_mismatch",
        )


@dataclass(frozen=True, slots=True)
class _Taken:
    submission: Submission
    data: bytes | None


def take(
    runtime: Runtime,
    row: CollectionRow,
    run_id: int,
    items: Iterable[Incoming],
    *,
    lane: Lane,
    metadata: Mapping[str, Scalar | list[str]],
    options: Mapping[str, str],
) -> None:
    """Write documents into the ledger, slice by slice; bytes that came with the request go into a pack first."""
    base = base_of(runtime, row)
    with loading.Reader(max_bytes=runtime.max_bytes) as reader:
        taken = (_take(reader, row, item, base, metadata, options) for item in items)
        for number, part in enumerate(_slices(taken)):
            uploads = _keep(runtime, row, f"load/run{run_id}-{number}", part)
            intake.submit(runtime.db, run_id, row, lane, [item.submission for item in part], uploads)


def _slices(items: Iterable[_Taken]) -> Iterator[list[_Taken]]:
    part: list[_Taken] = []
    size = 0
    for item in items:
        part.append(item)
        size += len(item.data or b"")
        if len(part) >= SLICE or size >= SLICE_BYTES:
            yield part
            part, size = [], 0
    if part:
        yield part


def _take(
    reader: loading.Reader, row: CollectionRow, item: Incoming, base: str, metadata: Mapping[str, Scalar | list[str]], options: Mapping[str, str]
) -> _Taken:
    document_id = identity.document_id(row.tenant, row.name, item.key)
    bare = Submission(document_id, item.key, item.title, item.url, item.path, item.member, item.media_type)
    try:
        if item.problem is not None:
            raise item.problem
        data = item.data if item.data is not None else reader.read(loading.entry_of(_source(item)))
    except PipelineError as error:
        reason = (error.code, error.detail, error.hint, isinstance(error, Skipped))
        return _Taken(replace(bare, error=reason), None)
    meta = {**metadata, **item.metadata}
    mark = fingerprint(base, meta, item.title, item.url, options)
    submission = replace(
        bare,
        size=len(data),
        metadata=meta,
        options=options,
        source_hash=identity.content_hash(data),
        fingerprint=mark,
        route=_route(item),
    )
    return _Taken(submission, item.data)


def base_of(runtime: Runtime, row: CollectionRow) -> str:
    """How a collection's documents are built: after a change of it, nothing is unchanged."""
    return identity.fingerprint(
        {
            "chunker": runtime.chunker_fingerprint(row),
            "embedder": row.embedder_revision,
            "parser": parse.VERSION,
            "generation": row.generation,
        }
    )


def fingerprint(base: str, meta: Mapping[str, Scalar | list[str]], title: str, url: str, options: Mapping[str, str]) -> str:
    """Everything beside its bytes that decides what becomes of a document.

    First its own part, then the collection's, which a new generation replaces.
    """
    own = identity.fingerprint({"meta": json.dumps(meta, sort_keys=True), "title": title, "url": url, **{f"o.{k}": v for k, v in options.items()}})
    return own[:MARK] + base[:MARK]


def _source(item: Incoming) -> SourceItem:
    return SourceItem(item.key, path=f"{item.path}!/{item.member}" if item.member else item.path)


def _route(item: Incoming) -> str:
    """Light text passes load, parse and chunk in one task; heavy or risky formats go from queue to queue."""
    name = item.member or item.path or item.key
    media_type = item.media_type or parse.SUFFIXES.get(PurePosixPath(name).suffix.lower(), "")
    return "fused" if media_type and media_type not in parse.RISKY else "staged"


def _keep(runtime: Runtime, row: CollectionRow, name: str, part: list[_Taken]) -> dict[str, Ref]:
    uploads = [item for item in part if item.data is not None]
    if not uploads:
        return {}
    before = intake.known(runtime.db, [item.submission.document_id for item in uploads])
    entries: list[Entry] = []
    for item in uploads:
        old, submission = before.get(item.submission.document_id), item.submission
        if old is not None and (old.live_hash, old.live_fingerprint) == (submission.source_hash, submission.fingerprint):
            continue
        key = identity.artifact_key(row.tenant, submission.source_hash, Stage.LOAD, 1, "")
        entries.append(Entry(submission.document_id, 0, Stage.LOAD, key, item.data or b""))
    return {ref.document_id: ref for ref in runtime.artifacts.write(name, entries)}
