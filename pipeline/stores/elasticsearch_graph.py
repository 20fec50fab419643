"""The graph of a collection in Elasticsearch: an index of its own behind the alias ``NAME-graph``, made with the first record.

What `put` and `withdraw` write carries its version as the server's external one, so that the server itself refuses a late
writer; what `swap` writes is compared by sequence number. No id ever becomes the name of a field.
"""

from __future__ import annotations

import base64
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from itertools import islice
from typing import cast

import orjson

from pipeline.contracts.graph import ELEMENTS, GraphAudit, GraphKind, GraphRecord
from pipeline.errors import BadRequest, BrokenContract, Conflict, NotFound
from pipeline.stores import elasticsearch_bulk as bulk
from pipeline.stores import elasticsearch_mapping as mapping
from pipeline.stores.digest import digest_elements
from pipeline.stores.elasticsearch_bulk import Operation, Refusal
from pipeline.stores.elasticsearch_client import Client, Json, SearchHit

PAGE = 500
"""Records of one read."""
HELD = 10_000
"""Held ids of one request; Elasticsearch takes 65,536 terms."""
SLICE = 20_000
"""Operations that are held in memory."""
KEEP_ALIVE = "5m"
_LONGEST_ID = 400

_FIELDS: Mapping[str, Mapping[str, object]] = {
    "kind": {"type": "keyword"},
    "id": {"type": "keyword"},
    "group": {"type": "keyword", "doc_values": False},
    "version": {"type": "long"},
    "holds": {"type": "keyword", "doc_values": False},
    "words": {"type": "text", "analyzer": "whitespace", "index_options": "freqs"},
    "gone": {"type": "boolean"},
    "body": {"type": "binary"},
}


class ElasticsearchGraph:
    """`GraphRecords` on the cluster of an `ElasticsearchStore`. Safe to use from several threads and processes."""

    def __init__(
        self, client: Client, *, writer: bool, pauses_s: Sequence[float] = bulk.PAUSES_S, sleep: Callable[[float], None] = time.sleep
    ) -> None:
        self._client, self._may_write = client, writer
        self._pauses_s, self._sleep = pauses_s, sleep

    def put(self, collection: str, records: Iterable[GraphRecord]) -> None:
        """See `GraphRecords.put`."""
        rest = iter(records)
        while page := list(islice(rest, SLICE)):
            refused = self._send(collection, [_put(record) for record in page])
            _raise_others(refused, collection)

    def swap(self, collection: str, swaps: Sequence[tuple[GraphRecord, int]]) -> list[bool]:
        """See `GraphRecords.swap`."""
        for record, seen in swaps:
            _check(record, above=seen)
        self._check_writer()
        alias = _alias(collection)
        names = [_name(record.kind, record.id) for record, _ in swaps]
        states = self._states(alias, names)
        operations: dict[int, Operation] = {}
        for place, (record, seen) in enumerate(swaps):
            version, at = states.get(names[place], (0, None))
            if version == seen:
                operations[place] = bulk.put_if(str(place), names[place], _source(record), seen=at)
        refused = self._send(collection, list(operations.values()))
        _raise_others(refused, collection)
        lost = {int(one.operation.owner) for one in refused}
        return [place in operations and place not in lost for place in range(len(swaps))]

    def get(self, collection: str, kind: GraphKind, ids: Sequence[str]) -> dict[str, GraphRecord]:
        """See `GraphRecords.get`; in real time."""
        alias = _alias(collection)
        found: dict[str, GraphRecord] = {}
        for start in range(0, len(ids), PAGE):
            page = list(dict.fromkeys(ids[start : start + PAGE]))
            try:
                answers = self._client.multi_get(alias, [_name(kind, one) for one in page], fields="id,kind,version,group,body,gone")
            except NotFound:
                return {}
            for answer in answers:
                if answer.get("found") and not answer["_source"].get("gone"):
                    record = _record(answer["_source"])
                    found[record.id] = record
        return found

    def scan(self, collection: str, kind: GraphKind, *, group: str = "", after: str = "") -> Iterator[GraphRecord]:
        """See `GraphRecords.scan`; from one point in time."""
        conditions: list[Json] = [{"term": {"group": group}}] if group else []
        if after:
            conditions.append({"range": {"id": {"gt": after}}})
        return self._scan(_alias(collection), kind, conditions)

    def holding(self, collection: str, kind: GraphKind, ids: Sequence[str]) -> Iterator[GraphRecord]:
        """See `GraphRecords.holding`."""
        distinct = list(dict.fromkeys(ids))
        given: set[str] = set()
        for start in range(0, len(distinct), HELD):
            for record in self._scan(_alias(collection), kind, [{"terms": {"holds": distinct[start : start + HELD]}}]):
                if record.id not in given:
                    if len(distinct) > HELD:
                        given.add(record.id)
                    yield record

    def find(self, collection: str, kind: GraphKind, terms: Sequence[str], k: int) -> list[tuple[str, float]]:
        """See `GraphRecords.find`."""
        words = list(dict.fromkeys(term for term in terms if term))
        if not words or k <= 0:
            return []
        should = [{"term": {"words": word}} for word in words[:1000]]
        query = {"bool": {"filter": [{"term": {"kind": kind.value}}, {"term": {"gone": False}}], "should": should, "minimum_should_match": 1}}
        body = {"size": k, "query": query, "_source": ["id"], "sort": ["_score", {"id": "asc"}], "track_total_hits": False}
        try:
            self._refresh(_alias(collection))
            hits = self._client.search(f"/{_alias(collection)}/_search", body)["hits"]["hits"]
        except NotFound:
            return []
        return [(str(hit["_source"]["id"]), float(cast("float", hit["sort"][0]))) for hit in hits]

    def remove(self, collection: str, kind: GraphKind, ids: Sequence[str]) -> None:
        """See `GraphRecords.remove`."""
        for start in range(0, len(ids), SLICE):
            _raise_others(self._send(collection, [bulk.remove(one, _name(kind, one)) for one in ids[start : start + SLICE]]), collection)

    def withdraw(self, collection: str, kind: GraphKind, fence: Mapping[str, int]) -> None:
        """See `GraphRecords.withdraw`."""
        names = list(fence)
        for start in range(0, len(names), SLICE):
            _raise_others(self._send(collection, [_fence(kind, one, fence[one]) for one in names[start : start + SLICE]]), collection)

    def purge(self, collection: str, kind: GraphKind, before: int) -> int:
        """See `GraphRecords.purge`."""
        old = [hit["id"] for hit in self._sources(_alias(collection), kind, [{"range": {"version": {"lt": before}}}], gone=True)]
        self.remove(collection, kind, cast("list[str]", old))
        return len(old)

    def count(self, collection: str, kind: GraphKind) -> int:
        """See `GraphRecords.count`."""
        alias = _alias(collection)
        query = {"bool": {"filter": [{"term": {"kind": kind.value}}, {"term": {"gone": False}}]}}
        try:
            self._refresh(alias)
            return cast("Mapping[str, int]", self._client.call("POST", f"/{alias}/_count", {"query": query}))["count"]
        except NotFound:
            return 0

    def audit(self, collection: str) -> GraphAudit:
        """See `GraphRecords.audit`."""
        return digest_elements((kind.value, record.id, record.body) for kind in ELEMENTS for record in self._scan(_alias(collection), kind, []))

    def _scan(self, alias: str, kind: GraphKind, conditions: Sequence[Json]) -> Iterator[GraphRecord]:
        return map(_record, self._sources(alias, kind, conditions))

    def _sources(self, alias: str, kind: GraphKind, conditions: Sequence[Json], *, gone: bool = False) -> Iterator[Mapping[str, object]]:
        """Everything that matches, refreshed, by id."""
        try:
            self._refresh(alias)
            opened = cast("Mapping[str, str]", self._client.call("POST", f"/{alias}/_pit", params={"keep_alive": KEEP_ALIVE}))
        except NotFound:
            return
        pit = opened["id"]
        wanted = [{"term": {"kind": kind.value}}, {"term": {"gone": gone}}, *conditions]
        body: dict[str, object] = {"size": PAGE, "query": {"bool": {"filter": wanted}}, "sort": [{"id": "asc"}], "track_total_hits": False}
        body["_source"] = ["id", "kind", "version", "group", "body"]
        try:
            while True:
                answer = self._client.search("/_search", body | {"pit": {"id": pit, "keep_alive": KEEP_ALIVE}})
                pit = answer.get("pit_id", pit)
                page: list[SearchHit] = answer["hits"]["hits"]
                yield from (hit["_source"] for hit in page)
                if len(page) < PAGE:
                    return
                body["search_after"] = page[-1]["sort"]
        finally:
            self._client.call("DELETE", "/_pit", {"id": pit})

    def _states(self, alias: str, names: Sequence[str]) -> dict[str, tuple[int, tuple[int, int]]]:
        """Name → (version, what it is compared by) of those that are there, in real time."""
        found: dict[str, tuple[int, tuple[int, int]]] = {}
        for start in range(0, len(names), PAGE):
            try:
                answers = self._client.multi_get(alias, list(names[start : start + PAGE]), fields="version")
            except NotFound:
                return {}
            for answer in answers:
                if answer.get("found"):
                    found[answer["_id"]] = (cast("int", answer["_source"]["version"]), (answer["_seq_no"], answer["_primary_term"]))
        return found

    def _send(self, collection: str, operations: Sequence[Operation]) -> list[Refusal]:
        """Send all; makes the index where it is missing. Raises NotFound for an unknown collection."""
        self._check_writer()
        if not operations:
            return []
        alias = _alias(collection)
        try:
            return bulk.send(self._client, alias, operations, pauses_s=self._pauses_s, sleep=self._sleep)
        except NotFound:
            self._create(collection, alias)
            return bulk.send(self._client, alias, operations, pauses_s=self._pauses_s, sleep=self._sleep)

    def _create(self, collection: str, alias: str) -> None:
        self._client.call("GET", f"/_alias/{mapping.check_name(collection)}")
        settings = {"refresh_interval": "30s", "similarity": {"default": {"type": "BM25", "k1": mapping.K1, "b": 0.75}}}
        fields = {"dynamic": "strict", "_meta": {"layout": mapping.LAYOUT, "dimension": 0}, "properties": _FIELDS}
        try:
            self._client.call("PUT", f"/{alias}-000001", {"aliases": {alias: {}}, "mappings": fields, "settings": {"index": settings}})
        except Conflict:
            pass  # another process was quicker

    def _refresh(self, alias: str) -> None:
        self._client.call("POST", f"/{alias}/_refresh")

    def _check_writer(self) -> None:
        if not self._may_write:
            raise Conflict("this store was opened for reading only", hint="Open it with writer=True.")


def _alias(collection: str) -> str:
    return f"{mapping.check_name(collection)}-graph"


def _name(kind: GraphKind, one: str) -> str:
    return f"{kind.value}:{one}"


def _check(record: GraphRecord, *, above: int = 0) -> None:
    if record.version <= above:
        raise BadRequest(f"version {record.version} of a graph record does not exceed {above}", code="bad_version")
    if not 0 < len(record.id.encode("utf-8", "surrogatepass")) <= _LONGEST_ID:
        raise BadRequest(f"a graph record's id must have 1 to {_LONGEST_ID} bytes", code="bad_name")


def _put(record: GraphRecord) -> Operation:
    _check(record)
    return _versioned(record.kind, record.id, 2 * record.version, _source(record))


def _fence(kind: GraphKind, one: str, version: int) -> Operation:
    """What a record leaves behind: no content. Its place is between its version and the next one."""
    return _versioned(kind, one, 2 * version + 1, orjson.dumps({"kind": kind.value, "id": one, "version": version, "gone": True}))


def _versioned(kind: GraphKind, one: str, external: int, source: bytes) -> Operation:
    action = {"index": {"_id": _name(kind, one), "version": external, "version_type": "external_gte"}}
    return Operation(one, orjson.dumps(action) + b"\n" + source + b"\n")


def _source(record: GraphRecord) -> bytes:
    source: dict[str, object] = {"kind": record.kind.value, "id": record.id, "version": record.version, "gone": False}
    source["body"] = base64.b64encode(record.body).decode("ascii")
    if record.group:
        source["group"] = record.group
    if record.words:
        source["words"] = record.words
    if record.holds:
        source["holds"] = record.holds
    try:
        return orjson.dumps(source)
    except TypeError as error:
        raise BrokenContract(f"a {record.kind.value} of the graph has an id or words that cannot be written as UTF-8") from error


def _record(source: Mapping[str, object]) -> GraphRecord:
    return GraphRecord(
        GraphKind(cast("str", source["kind"])),
        cast("str", source["id"]),
        cast("int", source["version"]),
        base64.b64decode(cast("str", source["body"])),
        cast("str", source.get("group", "")),
    )


def _raise_others(refused: Sequence[Refusal], collection: str) -> None:
    """A version that came late is no failure; anything else is."""
    for one in refused:
        if one.status != 409:
            raise BrokenContract(f"Elasticsearch refused a graph record of collection {collection} ({one.status} {one.kind})")
