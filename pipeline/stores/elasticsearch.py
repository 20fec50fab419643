"""The production store: one collection is two indices of an Elasticsearch cluster, 8.19 or 9.

Order of a write: chunk rows and bodies of the new version, a refresh, then the document's head by compare and set,
then the older rows are deleted. Readers show a row only when the head, read in real time, names its version. So
wherever a writer dies, its document shows the old version whole or the new one whole, and a late writer of an older
version cannot win: its head is refused, and its rows are never shown.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from threading import Lock
from typing import cast

import numpy as np

from pipeline.contracts import CollectionSpec, Hit, IndexedDocument, ParsedDocument, Section, Span, StoreAudit, StoreQuery, Vectors
from pipeline.errors import BrokenContract, Conflict, NotFound, Unavailable, Unsupported
from pipeline.highlight import highlight
from pipeline.parse import packed
from pipeline.protocols import NO_FENCE, Limiter, WriteOutcome
from pipeline.stores import elasticsearch_bulk as bulk
from pipeline.stores import elasticsearch_expunge as expunging
from pipeline.stores import elasticsearch_mapping as mapping
from pipeline.stores import elasticsearch_query as queries
from pipeline.stores import elasticsearch_rows as rows
from pipeline.stores.digest import digest_rows
from pipeline.stores.elasticsearch_client import Client, Json, SearchHit
from pipeline.stores.elasticsearch_graph import ElasticsearchGraph
from pipeline.stores.elasticsearch_write import Writer

PAGE = 1000
"""Records of one read by id, and of one page of vectors."""
SCAN_PAGE = 5000
"""Rows of one page of an audit."""
COUNTED = 200
"""Terms counted in one request."""
KEEP_ALIVE = "5m"
"""How long a point in time outlives its last page."""
ATTEMPTS = 3
"""Reads of a document that is replaced while it is read."""


class ElasticsearchStore:
    """`Store` on Elasticsearch. Safe to use from several threads and processes.

    Args:
        url: ``elasticsearch+http(s)://[user:password@]host:port``; see `elasticsearch_client.address`.
        writer: False makes every write a Conflict, as with the embedded store.
        timeout_s: seconds to wait for one answer.
        pauses_s: waits between attempts at throttled items of a bulk request.
    """

    def __init__(
        self,
        url: str,
        *,
        writer: bool = True,
        timeout_s: float = 60.0,
        pauses_s: Sequence[float] = bulk.PAUSES_S,
        sleep: Callable[[float], None] = time.sleep,
        limiter: Limiter | None = None,
    ) -> None:
        self._client = Client(url, timeout_s=timeout_s, limiter=limiter)
        self._may_write = writer
        self._writer = Writer(self._client, pauses_s=pauses_s, sleep=sleep)
        self._lock = Lock()
        self._dimensions: dict[str, int] = {}
        self._graph = ElasticsearchGraph(self._client, writer=writer, pauses_s=pauses_s, sleep=sleep)

    def graph(self) -> ElasticsearchGraph:
        """The graphs in the same cluster."""
        return self._graph

    def ensure(self, spec: CollectionSpec) -> None:
        """Create both indices where they are missing. Raises Conflict when they exist with another dimension."""
        self._check_writer()
        name = mapping.check_name(spec.name)
        if not 0 <= spec.dimension <= mapping.MAX_DIMENSION:
            raise Unsupported(
                f"vectors of {spec.dimension} dimensions: Elasticsearch takes {mapping.MAX_DIMENSION} at most",
                hint="Set DUJIANG_EMBEDDER_DIMENSION, or use another model.",
            )
        with self._lock:
            self._dimensions.pop(name, None)
        for alias, dimension in ((f"{name}-documents", 0), (name, spec.dimension)):
            try:
                self._read_dimension(alias)
            except NotFound:
                self._create(alias, dimension)
        present = self._dimension(name)
        if present != spec.dimension:
            raise Conflict(f"collection {name} holds vectors of {present} dimensions, not {spec.dimension}", hint="Build a new generation.")

    def write(self, collection: str, documents: Sequence[IndexedDocument]) -> list[WriteOutcome]:
        """Make each document's version visible, retire older ones, then delete them. Repeating it changes nothing.

        Raises BrokenContract or TooLarge naming a document that was refused, after all others were written.
        """
        self._check_writer()
        return self._writer.write(mapping.check_name(collection), self._dimension(collection), documents) if documents else []

    def delete(self, collection: str, document_ids: Sequence[str], *, fence: Mapping[str, int] = NO_FENCE) -> int:
        """Remove documents whole; returns how many existed. Unknown ids, and an unknown collection, are no error."""
        self._check_writer()
        name = mapping.check_name(collection)
        try:
            self._dimension(name)
        except NotFound:
            return 0
        return self._writer.delete(name, list(dict.fromkeys(document_ids)), fence)

    def search(self, collection: str, query: StoreQuery) -> list[Hit]:
        """Candidates of the lexical and the semantic side, united, with both scores; best first, ties by (key, ordinal).

        With both sides, best is the sum of BM25 divided by its maximum and the cosine. `Hit.score` is left at 0.
        The best k carry a highlight.
        """
        name = mapping.check_name(collection)
        dimension = self._dimension(name)
        if query.vector is not None and query.vector.shape != (dimension,):
            raise BrokenContract(f"a query vector of shape {query.vector.shape} for collection {name} of {dimension} dimensions")
        if query.k <= 0:
            return []
        wanted = queries.plan(query, as_base64=self._client.takes_base64)
        found = queries.candidates(self._client, name, wanted, lambda ids: rows.heads(self._client, name, ids))
        return [
            rows.hit(
                candidate.found,
                collection=name,
                scores=candidate.scores,
                highlight=highlight(candidate.text, query.words, query.grams) if rank < query.k else "",
                dimension=dimension if query.with_vectors else None,
            )
            for rank, candidate in enumerate(found)
        ]

    def chunks(self, collection: str, places: Sequence[tuple[str, int]], limits: StoreQuery) -> list[Hit]:
        """The chunks at (document id, ordinal), in that order; what is not there, or not let through, is left out."""
        name = mapping.check_name(collection)
        if not places:
            return []
        conditions = queries.conditions.clauses(limits.filters, limits.as_of)
        found = queries.at_places(self._client, name, places, conditions, lambda ids: rows.heads(self._client, name, ids))
        return [rows.hit(one, collection=name, scores={}, highlight="", dimension=None) for one in found]

    def frequencies(self, collection: str, terms: Sequence[str]) -> tuple[int, Mapping[str, int]]:
        """(number of chunks, chunks holding each term) over words and grams.

        Between a head's flip and the end of its write, a document's old and new rows are both counted.
        """
        name = mapping.check_name(collection)
        distinct = list(dict.fromkeys(terms))
        counts: dict[str, int] = {}
        total = 0
        for start in range(0, max(1, len(distinct)), COUNTED):
            page = distinct[start : start + COUNTED]
            either = [{"bool": {"should": [{"term": {"words": term}}, {"term": {"grams": term}}]}} for term in page]
            body: dict[str, object] = {"size": 0, "track_total_hits": True}
            if page:
                body["aggs"] = {"held": {"filters": {"filters": either}}}
            answer = self._client.search(f"/{name}/_search", body)
            total = answer["hits"]["total"]["value"]
            if page:
                buckets = answer["aggregations"]["held"]["buckets"]
                counts |= {term: bucket["doc_count"] for term, bucket in zip(page, buckets, strict=True)}
        return total, {term: counts[term] for term in terms}

    def vectors(self, collection: str, document_id: str) -> tuple[tuple[str, ...], Vectors]:
        """Hash of `search_text` and vector of each chunk of the visible version, shape (n, d); empty when unknown.

        A vector comes back as float32 within one unit in the last place: Elasticsearch keeps it divided by its length.
        """
        name = mapping.check_name(collection)
        dimension = self._dimension(name)
        fields = ["search_hash", {"field": "vector", "format": "binary"}] if dimension else ["search_hash"]
        found = self._visible_rows(name, document_id, fields)
        hashes = tuple(str(one["fields"]["search_hash"][0]) for one in found)
        return hashes, np.stack([rows.vector(one, dimension) for one in found]) if found else np.zeros((0, dimension), dtype=np.float32)

    def spans(self, collection: str, document_id: str) -> tuple[tuple[str, Span], ...]:
        """(chunk id, span) of each chunk of the visible version, in order."""
        found = self._visible_rows(mapping.check_name(collection), document_id, ["chunk_id", "start", "end"])
        fields = [one["fields"] for one in found]
        return tuple((str(one["chunk_id"][0]), (cast("int", one["start"][0]), cast("int", one["end"][0]))) for one in fields)

    def document(self, collection: str, document_id: str) -> ParsedDocument:
        """The visible version's parsed text with sections and tables. Raises NotFound."""
        name = mapping.check_name(collection)
        for _ in range(ATTEMPTS):
            head = rows.heads(self._client, name, [document_id]).get(document_id)
            if head is None:
                break
            parts = [rows.row_id(document_id, head.version, part) for part in range(head.parts)]
            content = rows.unpack(self._client.multi_get(f"{name}-documents", parts))
            if content is not None:
                return packed.load(content)
        raise NotFound(f"document {document_id} is not in collection {name}", document=document_id)

    def text(self, collection: str, document_id: str, start: int = 0, end: int | None = None) -> str:
        """The visible version's parsed text between two offsets. Raises NotFound."""
        return self.document(collection, document_id).text[start:end]

    def sections(self, collection: str, document_id: str, start: int = 0, end: int | None = None) -> tuple[Section, ...]:
        """The sections that touch the span. Raises NotFound."""
        parsed = self.document(collection, document_id)
        last = len(parsed.text) if end is None else end
        return tuple(section for section in parsed.sections if section.start < last and section.end > start)

    def audit(self, collection: str) -> StoreAudit:
        """Count and hash the visible rows, read page by page from one point in time."""
        name = mapping.check_name(collection)
        self._writer.refresh(f"{name},{name}-documents")
        heads = self._heads(name)
        held = {document_id: [0, 0] for document_id in heads}

        def visible() -> Iterator[tuple[str, int, str, str, bool]]:
            wanted = ["document_id", "version", "ordinal", "search_hash", "text_hash", "embedded"]
            for one in self._scan(name, {"match_all": {}}, wanted):
                fields = one["fields"]
                document_id = str(fields["document_id"][0])
                version, chunks, key = heads.get(document_id, (-1, 0, ""))
                ordinal = cast("int", fields["ordinal"][0])
                if fields["version"][0] == version and ordinal < chunks:
                    embedded = bool(fields["embedded"][0])
                    held[document_id][0] += 1
                    held[document_id][1] += embedded
                    yield key, ordinal, str(fields["search_hash"][0]), str(fields["text_hash"][0]), embedded

        digest = digest_rows(visible())
        chunks, vectors = (sum(counts[place] for counts in held.values()) for place in (0, 1))
        versions = {document_id: version for document_id, (version, *_) in heads.items()}
        return StoreAudit(len(heads), chunks, vectors, digest, versions, {document_id: (one[0], one[1]) for document_id, one in held.items()})

    def _heads(self, name: str) -> dict[str, tuple[int, int, str]]:
        """Document id → (visible version, chunks, key), as refreshed."""
        heads: dict[str, tuple[int, int, str]] = {}
        for one in self._scan(f"{name}-documents", {"term": {"record": "head"}}, ["version", "chunks", "document_id"], source=["key"]):
            fields = one["fields"]
            place = (cast("int", fields["version"][0]), cast("int", fields["chunks"][0]), str(one["_source"]["key"]))
            heads[str(fields["document_id"][0])] = place
        return heads

    def versions(self, collection: str) -> Mapping[str, int]:
        """Document id → visible version. Raises NotFound."""
        name = mapping.check_name(collection)
        self._writer.refresh(f"{name}-documents")
        return {document_id: version for document_id, (version, *_) in self._heads(name).items()}

    def collections(self) -> list[str]:
        """Names of the collections that are there, in order: aliases of this program's own pattern."""
        answer = cast("Mapping[str, Mapping[str, Mapping[str, object]]]", self._client.call("GET", "/_alias/dujiang-*"))
        found = {alias for index in answer.values() for alias in index["aliases"]}
        return sorted(alias for alias in found if not alias.endswith(("-documents", "-graph")))

    def expunge(self, collection: str) -> None:
        """See `elasticsearch_expunge`. Unknown names are no error."""
        self._check_writer()
        name = mapping.check_name(collection)
        both = f"{name},{name}-documents"
        try:
            self._dimension(name)
            expunging.expunge(self._client, both)
            expunging.expunge(self._client, f"{name}-graph")
        except NotFound:
            return

    def drop(self, collection: str) -> None:
        """Remove the collection with all it holds. Unknown names are no error."""
        self._check_writer()
        name = mapping.check_name(collection)
        with self._lock:
            self._dimensions.pop(name, None)
        for alias in (name, f"{name}-documents", f"{name}-graph"):
            try:
                indices = cast("Mapping[str, object]", self._client.call("GET", f"/_alias/{alias}"))
            except NotFound:
                continue
            self._client.call("DELETE", "/" + ",".join(indices), params={"ignore_unavailable": "true"})

    def close(self) -> None:
        """Give the connections back; a later call opens new ones."""
        self._client.close()

    def purge(self, collection: str) -> int:
        """Delete rows and bodies that belong to no visible version, as a crashed writer leaves them; returns how many.

        To be called only while nothing of the collection is being written: a row whose head is still to come is deleted as well.
        """
        self._check_writer()
        name = mapping.check_name(collection)
        self._writer.refresh(f"{name},{name}-documents")
        removed = 0
        for index, record in ((name, "chunk"), (f"{name}-documents", "body")):
            page: list[tuple[str, str, int, int]] = []
            for one in self._scan(index, {"term": {"record": record}}, ["document_id", "version", "ordinal"]):
                fields = one["fields"]
                page.append((one["_id"], str(fields["document_id"][0]), cast("int", fields["version"][0]), cast("int", fields["ordinal"][0])))
                if len(page) == SCAN_PAGE:
                    removed += self._purge_page(name, index, page)
                    page = []
            removed += self._purge_page(name, index, page)
        self._writer.refresh(f"{name},{name}-documents")
        return removed

    def _purge_page(self, name: str, index: str, page: Sequence[tuple[str, str, int, int]]) -> int:
        heads = rows.heads(self._client, name, list(dict.fromkeys(document_id for _, document_id, _, _ in page)))
        lost: list[str] = []
        for row, document_id, version, ordinal in page:
            head = heads.get(document_id)
            kept = head is not None and (head.shows(version, ordinal) if index == name else version == head.version and ordinal < head.parts)
            if not kept:
                lost.append(row)
        self._writer.remove(index, lost)
        return len(lost)

    def _check_writer(self) -> None:
        if not self._may_write:
            raise Conflict("this store was opened for reading only", hint="Open it with writer=True.")

    def _dimension(self, name: str) -> int:
        """Of the collection's vectors, read once. Raises NotFound."""
        with self._lock:
            known = self._dimensions.get(name)
        if known is None:
            known = self._read_dimension(name)
            with self._lock:
                self._dimensions[name] = known
        return known

    def _read_dimension(self, alias: str) -> int:
        answer = cast("Mapping[str, Mapping[str, Mapping[str, Mapping[str, int]]]]", self._client.call("GET", f"/{alias}/_mapping"))
        meta = next(iter(answer.values()))["mappings"].get("_meta", {})
        if meta.get("layout") != mapping.LAYOUT:
            raise Conflict(f"index {alias} was not made by this version of the store", hint="Build a new generation of the collection.")
        return meta["dimension"]

    def _create(self, alias: str, dimension: int) -> None:
        try:
            self._client.call("PUT", f"/{alias}-000001", mapping.index(alias, dimension))
        except Conflict:
            pass  # another process was quicker

    def _visible_rows(self, name: str, document_id: str, fields: Sequence[object]) -> list[SearchHit]:
        """Rows of the visible version by ordinal, with doc values only. Empty when the document is unknown."""
        for _ in range(ATTEMPTS):
            head = rows.heads(self._client, name, [document_id]).get(document_id)
            if head is None:
                return []
            conditions = [{"term": {"document_id": document_id}}, {"term": {"version": head.version}}, {"range": {"ordinal": {"lt": head.chunks}}}]
            found: list[SearchHit] = []
            body: dict[str, object] = {"size": PAGE, "_source": False, "sort": [{"ordinal": "asc"}], "docvalue_fields": list(fields)}
            body["query"] = {"bool": {"filter": conditions}}
            while True:
                page = self._client.search(f"/{name}/_search", body)["hits"]["hits"]
                found += page
                if len(page) < PAGE:
                    break
                body["search_after"] = page[-1]["sort"]
            if len(found) == head.chunks:
                return found
        raise Unavailable(f"document {document_id} of collection {name} changes while it is read")

    def _scan(self, index: str, query: Json, fields: Sequence[str], *, source: Sequence[str] = ()) -> Iterator[SearchHit]:
        """Every record that matches, from one point in time, with doc values."""
        opened = cast("Mapping[str, str]", self._client.call("POST", f"/{index}/_pit", params={"keep_alive": KEEP_ALIVE}))
        pit = opened["id"]
        body: dict[str, object] = {"size": SCAN_PAGE, "query": query, "docvalue_fields": list(fields), "sort": ["_shard_doc"]}
        body |= {"_source": list(source) or False, "track_total_hits": False}
        try:
            while True:
                answer = self._client.search("/_search", body | {"pit": {"id": pit, "keep_alive": KEEP_ALIVE}})
                pit = answer.get("pit_id", pit)
                page = answer["hits"]["hits"]
                yield from page
                if len(page) < SCAN_PAGE:
                    return
                body["search_after"] = page[-1]["sort"]
        finally:
            self._client.call("DELETE", "/_pit", {"id": pit})
