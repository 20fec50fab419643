"""Filters as people and programs write them, and what they mean."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pipeline.contracts import Filter, Op, Scalar
from pipeline.errors import BadRequest
from pipeline.stores.filters import from_json, matches, parse

FIELDS = {"document_id": "d1", "key": "file:///a.md", "title": "Report", "url": ""}


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("lang=zh", Filter("lang", Op.EQ, "zh")),
        ("lang == zh", Filter("lang", Op.EQ, "zh")),
        ("lang!=zh", Filter("lang", Op.NE, "zh")),
        ("year>=2020", Filter("year", Op.GTE, 2020)),
        ("year > -1.5", Filter("year", Op.GT, -1.5)),
        ("year<=2020", Filter("year", Op.LTE, 2020)),
        ("year<2e3", Filter("year", Op.LT, 2000.0)),
        ('year="2024"', Filter("year", Op.EQ, "2024")),
        ("final=true", Filter("final", Op.EQ, True)),
        ("final='true'", Filter("final", Op.EQ, "true")),
        ("title=Report of March = good", Filter("title", Op.EQ, "Report of March = good")),
        ("url=https://example.org/?a=b&c>=d", Filter("url", Op.EQ, "https://example.org/?a=b&c>=d")),
        ("empty=", Filter("empty", Op.EQ, "")),
        ("lang in zh,en", Filter("lang", Op.IN, ("zh", "en"))),
        ('year in 2019, "2024" ,x y', Filter("year", Op.IN, (2019, "2024", "x y"))),
        ("lang in zh", Filter("lang", Op.IN, ("zh",))),
        ("formula in a=b,c", Filter("formula", Op.IN, ("a=b", "c"))),
        ("final exists", Filter("final", Op.EXISTS, True)),
        ("final not exists", Filter("final", Op.EXISTS, False)),
        ("语言=中文", Filter("语言", Op.EQ, "中文")),
        ("released=2024-01-31", Filter("released", Op.EQ, "2024-01-31")),
    ],
)
def test_conditions_are_read_as_people_type_them(text: str, expected: Filter) -> None:
    found = parse(text)
    assert found == expected and type(found.value) is type(expected.value)


@pytest.mark.parametrize("text", ["", "year", "=2", "in a,b", "year ~ 3", " >= 3"])
def test_what_is_no_condition_is_refused_with_the_forms_there_are(text: str) -> None:
    with pytest.raises(BadRequest) as refused:
        parse(text)
    assert "key in a,b" in refused.value.hint and refused.value.code == "bad_filter"


@settings(deadline=None)
@given(st.text(max_size=40))
def test_any_text_is_a_condition_or_refused(text: str) -> None:
    try:
        found = parse(text)
    except BadRequest:
        return
    assert found.name and found.name == found.name.strip()


@pytest.mark.parametrize(
    ("value", "expected"),
    [
        ([{"name": "year", "op": "gte", "value": 2020}], (Filter("year", Op.GTE, 2020),)),
        ([{"name": "year", "value": 2020}], (Filter("year", Op.EQ, 2020),)),
        ([{"name": "lang", "op": "in", "value": ["zh", "en"]}], (Filter("lang", Op.IN, ("zh", "en")),)),
        ([{"name": "lang", "op": "in", "value": "zh"}], (Filter("lang", Op.IN, ("zh",)),)),
        ([{"name": "final", "op": "exists"}], (Filter("final", Op.EXISTS, True),)),
        ([{"name": "final", "op": "exists", "value": False}], (Filter("final", Op.EXISTS, False),)),
        ({"year": 2020, "lang": ["zh", "en"]}, (Filter("year", Op.EQ, 2020), Filter("lang", Op.IN, ("zh", "en")))),
        ({"year": {"op": "lt", "value": 3}}, (Filter("year", Op.LT, 3),)),
        (["year>=2020"], (Filter("year", Op.GTE, 2020),)),
        ([], ()),
    ],
)
def test_conditions_are_read_from_json(value: object, expected: tuple[Filter, ...]) -> None:
    assert from_json(value) == expected


@pytest.mark.parametrize(
    ("value", "pointer"),
    [
        ("year=3", "/filters"),
        (3, "/filters"),
        ([3], "/filters/0"),
        ([{"op": "eq", "value": 3}], "/filters/0/name"),
        ([{"name": "a", "value": 1}, {"name": "b", "op": "like", "value": 3}], "/filters/1/op"),
        ([{"name": "a", "op": "eq", "value": {"x": 1}}], "/filters/0/value"),
        ([{"name": "a", "op": "gt", "value": [1, 2]}], "/filters/0/value"),
        ([{"name": "a", "op": "in", "value": [[1]]}], "/filters/0/value"),
    ],
)
def test_wrong_json_is_refused_naming_the_field(value: object, pointer: str) -> None:
    with pytest.raises(BadRequest) as refused:
        from_json(value)
    assert refused.value.pointer == pointer


def test_a_missing_field_matches_only_its_absence() -> None:
    for op in (Op.EQ, Op.IN, Op.GT, Op.GTE, Op.LT, Op.LTE):
        for value in (None, "", 0, "a"):
            assert not matches([Filter("absent", op, value)], {"absent": None}, FIELDS)
            assert not matches([Filter("url", op, value)], {}, FIELDS)
    assert matches([Filter("absent", Op.NE, "a"), Filter("absent", Op.EXISTS, False), Filter("url", Op.NE, "a")], {}, FIELDS)
    assert not matches([Filter("absent", Op.EXISTS, True)], {}, FIELDS)


def test_values_only_match_their_own_type() -> None:
    assert matches([Filter("n", Op.EQ, 3.0)], {"n": 3}, FIELDS)
    assert not matches([Filter("n", Op.EQ, "3")], {"n": 3}, FIELDS)
    assert not matches([Filter("n", Op.EQ, 1)], {"n": True}, FIELDS)
    assert not matches([Filter("n", Op.GT, 1)], {"n": "2"}, FIELDS)
    assert not matches([Filter("n", Op.GTE, False)], {"n": True}, FIELDS)


def test_fields_of_the_document_win_over_metadata_of_their_name() -> None:
    assert matches([Filter("title", Op.EQ, "Report"), Filter("key", Op.GT, "file:///a")], {"title": "other"}, FIELDS)
    assert not matches([Filter("title", Op.EQ, "other")], {"title": "other"}, FIELDS)


_VALUE = st.one_of(st.text(max_size=3), st.integers(-3, 3), st.floats(-3, 3), st.booleans())


@settings(deadline=None)
@given(held=_VALUE, asked=_VALUE)
def test_every_comparison_has_its_opposite(held: Scalar, asked: Scalar) -> None:
    def holds(op: Op) -> bool:
        return matches([Filter("x", op, asked)], {"x": held}, FIELDS)

    assert holds(Op.EQ) is not holds(Op.NE)
    assert holds(Op.IN) is holds(Op.EQ)
    if holds(Op.GT) or holds(Op.LT):
        assert holds(Op.GT) is not holds(Op.LT) and not holds(Op.EQ)
        assert holds(Op.GTE) is holds(Op.GT) and holds(Op.LTE) is holds(Op.LT)
