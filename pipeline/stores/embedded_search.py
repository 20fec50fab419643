"""Candidates of a query in the embedded store: BM25 by FTS5, exact cosine by numpy, filters before either is cut to k."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import chain
from typing import TypeAlias, cast

import numpy as np
from numpy.typing import NDArray

from pipeline.contracts import Filter, Op, Scalar, StoreQuery
from pipeline.stores import filters
from pipeline.stores.embedded_sql import Sql
from pipeline.stores.embedded_write import microseconds, stored
from pipeline.stores.vectors import Matrix, inside

WEIGHT = 2.0
"""FTS5 fixes k1 at 1.2; a column's weight multiplies the term's count, which works like k1 = 0.6. Short chunks rank better so."""
MOST_TERMS = 1000
"""Terms of a question that are asked for."""
COMMON, COMMON_SHARE = 1000, 0.2
"""A term in more chunks than both allow is not searched for while another one is left: it costs most of a search's time, and on cmrc2018 and
drcd leaving such terms out changed no recall (bench/retrieval.py)."""
TIES = 64
"""Candidates of equal score beyond k among which (key, ordinal) decides."""
_COMPARE = {Op.GT: ">", Op.GTE: ">=", Op.LT: "<", Op.LTE: "<="}

Ids = NDArray[np.int64]
Figures = NDArray[np.float64]
Term: TypeAlias = tuple[str, str]
"""(column, term)."""


@dataclass(frozen=True, slots=True)
class Candidate:
    """One chunk with what each side said of it."""

    chunk: int
    scores: dict[str, float]


@dataclass(frozen=True, slots=True)
class Side:
    """One side's chunks, allowed or not, with its figures."""

    ids: Ids
    figures: Figures
    allowed: NDArray[np.bool_]

    def best(self, k: int) -> Ids:
        """The best allowed chunks, at most k + `TIES`: those at the cut that are equal to the last one are kept."""
        ids, figures = self.ids[self.allowed], self.figures[self.allowed]
        if len(ids) > k:
            cut = np.partition(figures, len(figures) - k)[len(figures) - k]
            keep = figures >= cut
            ids, figures = ids[keep], figures[keep]
        order = np.lexsort((ids, -figures))
        return ids[order][: k + TIES]

    def at(self, ids: Ids) -> Figures:
        """Figure of each given chunk, 0.0 where this side has none. `self.ids` must ascend."""
        if not len(self.ids):
            return np.zeros(len(ids))
        places = np.minimum(np.searchsorted(self.ids, ids), len(self.ids) - 1)
        return np.where(self.ids[places] == ids, self.figures[places], 0.0)


def candidates(connection: Sql, query: StoreQuery, terms: Sequence[Term], matrix: Matrix | None) -> dict[str, list[Candidate]]:
    """Best chunks of each side by its name, with the scores of all sides that were asked. In a read transaction.

    Args:
        terms: those of the query to search for; `min_match` counts these.
    """
    allowed = _allowed(connection, query)
    sides: dict[str, Side] = {}
    if terms:
        sides["lexical"] = _lexical(connection, query, terms, allowed)
    if matrix is not None and query.vector is not None:
        figures = matrix.similarities(query.vector).astype(np.float64)
        usable = matrix.usable & (figures >= query.min_similarity) if np.any(query.vector) else np.zeros(len(figures), dtype=np.bool_)
        sides["similarity"] = Side(matrix.ids, np.where(matrix.usable, figures, 0.0), usable & allowed(matrix.ids))
    names = (["lexical"] if query.words or query.grams else []) + (["similarity"] if query.vector is not None else [])
    found: dict[str, list[Candidate]] = {}
    for asked, side in sides.items():
        ids = side.best(query.k)
        figures = {name: sides[name].at(ids) if name in sides else np.zeros(len(ids)) for name in names}
        found[asked] = [Candidate(int(chunk), {name: float(figures[name][place]) for name in names}) for place, chunk in enumerate(ids)]
    return found


def at_places(connection: Sql, query: StoreQuery, places: Sequence[tuple[str, int]]) -> list[int]:
    """Ids of the chunks at (document id, ordinal) that the query's filters let through, in that order."""
    found: list[int] = []
    documents: dict[str, tuple[int, int]] = {}
    for document_id, ordinal in places:
        if document_id not in documents:
            row = connection.execute("SELECT id, chunks FROM documents WHERE document_id = ?", (document_id,)).fetchone()
            documents[document_id] = cast("tuple[int, int]", row) if row else (0, 0)
        first, count = documents[document_id]
        if 0 <= ordinal < count:
            found.append(first + ordinal)
    if not found:
        return []
    ids = np.array(sorted(set(found)), dtype=np.int64)
    passed = set(ids[_allowed(connection, query)(ids)].tolist())
    return [chunk for chunk in found if chunk in passed]


def expression(words: Iterable[str], grams: Iterable[str]) -> str:
    """An FTS5 query for any of the terms, each in its own column; quoted, so that no term is read as syntax."""
    parts = [f"{{{column}}} : ({' OR '.join(map(quoted, terms))})" for column, terms in (("words", list(words)), ("grams", list(grams))) if terms]
    return " OR ".join(parts)


def quoted(term: str) -> str:
    """A term as an FTS5 string."""
    return '"' + term.replace('"', '""') + '"'


def searchable(term: str) -> bool:
    """Whether the tokenizer leaves something of it: letters, digits, or anything beyond ASCII."""
    return any(char.isalnum() or not char.isascii() for char in term) and "\0" not in term


def conditions(asked: Sequence[Filter]) -> tuple[str, list[Scalar]]:
    """Filters as SQL on `documents d`, every name and value a parameter."""
    clauses, values = ["1"], list[Scalar]()
    for condition in asked:
        clause, bound = _row_field(condition) if condition.name in filters.ROW_FIELDS else _fact(condition)
        clauses.append(clause)
        values += bound
    return " AND ".join(clauses), values


def terms_of(query: StoreQuery) -> list[Term]:
    """Each distinct term that can be searched for."""
    pairs = [("words", word) for word in query.words] + [("grams", gram) for gram in query.grams]
    return [pair for pair in dict.fromkeys(pairs) if searchable(pair[1])][:MOST_TERMS]


def telling(terms: Sequence[Term], frequencies: Mapping[str, int], chunks: int) -> list[Term]:
    """The terms that are not in too many chunks; all of them when all are."""
    most = max(COMMON, int(COMMON_SHARE * chunks))
    return [term for term in terms if frequencies[term[1]] <= most] or list(terms)


def _lexical(connection: Sql, query: StoreQuery, terms: Sequence[Term], allowed: Allowed) -> Side:
    asked = expression([term for column, term in terms if column == "words"], [term for column, term in terms if column == "grams"])
    rows = connection.execute(f"SELECT rowid, bm25(terms, {WEIGHT}, {WEIGHT}) FROM terms WHERE terms MATCH ?", (asked,)).fetchall()
    table = np.fromiter(chain.from_iterable(cast("list[tuple[float, float]]", rows)), np.float64, 2 * len(rows)).reshape(-1, 2)
    ids = table[:, 0].astype(np.int64)
    permitted = allowed(ids)
    least = math.ceil(query.min_match * len(terms) - 1e-9)
    if least > 1:
        permitted &= _held(connection, terms, ids) >= least
    return Side(ids, -table[:, 1], permitted)


def _held(connection: Sql, terms: Sequence[Term], ids: Ids) -> Ids:
    """How many of the terms each chunk holds. `ids` ascend and are all that hold any."""
    counts = np.zeros(len(ids), dtype=np.int64)
    for column, term in terms:
        rows = connection.execute("SELECT rowid FROM terms WHERE terms MATCH ?", (f"{{{column}}} : {quoted(term)}",)).fetchall()
        if rows:
            counts[np.searchsorted(ids, np.array(rows, dtype=np.int64)[:, 0])] += 1
    return counts


class Allowed:
    """Which chunks the filters and `as_of` let through."""

    def __init__(self, documents: Ids | None, dated: Ids | None) -> None:
        self._documents = documents
        self._dated = dated

    def __call__(self, ids: Ids) -> NDArray[np.bool_]:
        """Shape of `ids`."""
        passed = np.ones(len(ids), dtype=np.bool_) if self._documents is None else inside(ids, self._documents)
        return passed if self._dated is None else passed & np.isin(ids, self._dated)


def _allowed(connection: Sql, query: StoreQuery) -> Allowed:
    documents = dated = None
    if query.filters:
        where, values = conditions(query.filters)
        rows = connection.execute(f"SELECT d.id, d.chunks FROM documents d WHERE {where} ORDER BY d.id", values).fetchall()
        documents = np.array(rows, dtype=np.int64).reshape(-1, 2)
    if query.as_of is not None:
        moment = microseconds(query.as_of)
        known = "SELECT id FROM chunks WHERE valid_from IS NOT NULL AND valid_from <= ? AND (valid_to IS NULL OR valid_to > ?)"
        dated = np.array(connection.execute(known, (moment, moment)).fetchall(), dtype=np.int64).reshape(-1)
    return Allowed(documents, dated)


def _row_field(condition: Filter) -> tuple[str, list[Scalar]]:
    column = f"d.{condition.name}"
    texts = [value for value in filters.wanted(condition) if isinstance(value, str)]
    match condition.op:
        case Op.EXISTS:
            return (f"{column} = ''" if condition.value is False else f"{column} <> ''"), []
        case Op.EQ | Op.IN | Op.NE:
            equal = f"({column} <> '' AND {column} IN ({_marks(texts)}))"
            return (f"NOT {equal}" if condition.op is Op.NE else equal), list(texts)
        case Op.GT | Op.GTE | Op.LT | Op.LTE:
            any_of = " OR ".join([f"{column} {_COMPARE[condition.op]} ?"] * len(texts)) or "0"
            return f"({column} <> '' AND ({any_of}))", list(texts)


def _fact(condition: Filter) -> tuple[str, list[Scalar]]:
    pairs = [(filters.kind(value), stored(value)) for value in filters.wanted(condition) if value is not None]
    match condition.op:
        case Op.EXISTS:
            found = "d.id IN (SELECT document FROM facts WHERE name = ? AND kind = '')"
            return (f"NOT {found}" if condition.value is False else found), [condition.name]
        case Op.EQ | Op.IN | Op.NE:
            any_of = " OR ".join(["(kind = ? AND value = ?)"] * len(pairs)) or "0"
            found = f"d.id IN (SELECT document FROM facts WHERE name = ? AND ({any_of}))"
            return (f"NOT {found}" if condition.op is Op.NE else found), [condition.name, *_flat(pairs)]
        case Op.GT | Op.GTE | Op.LT | Op.LTE:
            pairs = [pair for pair in pairs if pair[0] != "b"]
            any_of = " OR ".join([f"(kind = ? AND value {_COMPARE[condition.op]} ?)"] * len(pairs)) or "0"
            return f"d.id IN (SELECT document FROM facts WHERE name = ? AND ({any_of}))", [condition.name, *_flat(pairs)]


def _flat(pairs: Iterable[tuple[str, Scalar]]) -> list[Scalar]:
    return [item for pair in pairs for item in pair]


def _marks(items: Sequence[object]) -> str:
    return ",".join("?" * len(items))


def ordered(sides: Mapping[str, Sequence[Candidate]], k: int, places: Mapping[int, tuple[str, int]]) -> list[Candidate]:
    """At most k of each side, united, best first.

    Args:
        places: (key, ordinal) of each chunk, which break ties.
    """
    united: dict[int, Candidate] = {}
    for name, side in sides.items():
        ranked = sorted(side, key=lambda one: (-one.scores[name], *places[one.chunk]))
        for one in ranked[:k]:
            united.setdefault(one.chunk, one)
    top = max((one.scores.get("lexical", 0.0) for one in united.values()), default=0.0) or 1.0

    def merit(one: Candidate) -> float:
        return round(one.scores.get("lexical", 0.0) / top + one.scores.get("similarity", 0.0), 12)

    return sorted(united.values(), key=lambda one: (-merit(one), *places[one.chunk]))
