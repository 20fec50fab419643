"""A graph for other programs: as a `networkx.Graph`, as node-link JSON, as GraphML."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, cast
from xml.sax.saxutils import escape, quoteattr

import orjson

from graphrag.contracts import Entity, Relation
from graphrag.records import load_entity, load_relation
from pipeline.contracts.graph import GraphKind
from pipeline.errors import Unsupported
from pipeline.protocols import GraphRecords

if TYPE_CHECKING:
    import networkx

FORMATS = ("json", "graphml")
_NODE = {"name": "string", "type": "string", "aliases": "string", "description": "string", "mentions": "long", "documents": "long"}
_EDGE = {"weight": "double", "count": "long", "documents": "long", "description": "string", "keywords": "string"}


def entities(records: GraphRecords, collection: str) -> Iterator[Entity]:
    """In the order of ids."""
    return (load_entity(record.body) for record in records.scan(collection, GraphKind.ENTITY))


def relations(records: GraphRecords, collection: str) -> Iterator[Relation]:
    """In the order of ids."""
    return (load_relation(record.body) for record in records.scan(collection, GraphKind.RELATION))


def load_graph(records: GraphRecords, collection: str) -> networkx.Graph[str]:
    """The whole graph in memory: nodes are keys, attributes those of `Entity` and `Relation`, sources as ids of documents and chunks.

    Raises Unsupported when networkx is not installed.
    """
    try:
        import networkx
    except ModuleNotFoundError as error:
        raise Unsupported("a graph as an object needs networkx, which is not installed", hint="pip install 'dujiang[graph]'.") from error
    graph: networkx.Graph[str] = networkx.Graph()
    for entity in entities(records, collection):
        graph.add_node(entity.key, **_node(entity))
    for relation in relations(records, collection):
        graph.add_edge(relation.source, relation.target, **_edge(relation))
    return graph


def node_link(records: GraphRecords, collection: str) -> Iterator[bytes]:
    """Node-link JSON in pieces, as `networkx.node_link_graph(…, edges="edges")` reads it; needs no networkx."""
    yield b'{"directed":false,"multigraph":false,"graph":{},"nodes":['
    for number, entity in enumerate(entities(records, collection)):
        yield (b",\n" if number else b"\n") + orjson.dumps({"id": entity.key, **_node(entity)})
    yield b'\n],"edges":['
    for number, relation in enumerate(relations(records, collection)):
        yield (b",\n" if number else b"\n") + orjson.dumps({"source": relation.source, "target": relation.target, **_edge(relation)})
    yield b"\n]}\n"


def graphml(records: GraphRecords, collection: str) -> Iterator[bytes]:
    """GraphML in pieces, as `networkx.read_graphml`, Gephi and yEd read it; lists are joined by semicolons, sources are left out."""
    yield b'<?xml version="1.0" encoding="UTF-8"?>\n<graphml xmlns="http://graphml.graphdrawing.org/xmlns">\n'
    for kind, fields in (("node", _NODE), ("edge", _EDGE)):
        for name, of in fields.items():
            yield f'<key id="{kind}_{name}" for="{kind}" attr.name="{name}" attr.type="{of}"/>\n'.encode()
    yield b'<graph edgedefault="undirected">\n'
    for entity in entities(records, collection):
        yield f"<node id={_quoted(entity.key)}>{_data('node', _NODE, _node(entity))}</node>\n".encode("utf-8", "replace")
    for relation in relations(records, collection):
        ends = f"source={_quoted(relation.source)} target={_quoted(relation.target)}"
        yield f"<edge {ends}>{_data('edge', _EDGE, _edge(relation))}</edge>\n".encode("utf-8", "replace")
    yield b"</graph>\n</graphml>\n"


def _node(entity: Entity) -> dict[str, object]:
    return {
        "name": entity.name,
        "type": entity.type,
        "aliases": list(entity.aliases),
        "description": entity.description,
        "mentions": entity.mentions,
        "documents": entity.documents,
        "sources": [[one.document_id, one.chunk_id, one.start, one.end] for one in entity.sources],
    }


def _edge(relation: Relation) -> dict[str, object]:
    return {
        "weight": relation.weight,
        "count": relation.count,
        "documents": relation.documents,
        "description": relation.description,
        "keywords": list(relation.keywords),
        "sources": [[one.document_id, one.chunk_id, one.start, one.end] for one in relation.sources],
    }


def _data(kind: str, fields: dict[str, str], values: dict[str, object]) -> str:
    return "".join(f'<data key="{kind}_{name}">{escape(_legal(_text(values[name])))}</data>' for name in fields)


def _text(value: object) -> str:
    return ";".join(cast("list[str]", value)) if isinstance(value, list) else str(value)


def _quoted(text: str) -> str:
    return quoteattr(_legal(text))


def _legal(text: str) -> str:
    """Without the characters that XML cannot hold."""
    return "".join(one for one in text if one in "\t\n\r" or (one >= " " and not "\ud800" <= one <= "\udfff" and one not in "\ufffe\uffff"))
