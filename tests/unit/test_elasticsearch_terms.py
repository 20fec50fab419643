"""What the Elasticsearch store makes without a server: terms, addresses, the shipped template."""

from __future__ import annotations

import json
from datetime import UTC, datetime, timedelta, timezone
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pipeline.errors import BadRequest
from pipeline.stores import elasticsearch_filters as filters
from pipeline.stores import elasticsearch_mapping as mapping
from pipeline.stores.elasticsearch_client import address

NUMBERS = st.one_of(st.integers(), st.floats(allow_nan=False), st.integers(-(2**63), 2**63), st.integers(2**53 - 9, 2**53 + 9))


@given(st.integers(-(2**63), 2**63), st.integers(-(2**63), 2**63))
def test_whole_numbers_sort_as_numbers_however_near_they_are(left: int, right: int) -> None:
    one, other = filters.terms({"n": left})[1], filters.terms({"n": right})[1]
    assert (one < other) == (left < right) and (one == other) == (left == right)


@given(NUMBERS, st.floats(allow_nan=False))
def test_whole_numbers_and_fractions_compare_with_each_other(left: float, right: float) -> None:
    one, other = filters.terms({"n": left})[1], filters.terms({"n": right})[1]
    if abs(left) < 2**63:
        assert (one < other) == (left < right) and (one == other) == (left == right)


@given(st.text(max_size=20), st.text(max_size=20))
def test_strings_sort_as_strings(left: str, right: str) -> None:
    one, other = filters.terms({"s": left})[1], filters.terms({"s": right})[1]
    assert (one.encode("utf-8", "surrogatepass") < other.encode("utf-8", "surrogatepass")) == (left < right)


@given(st.text(min_size=1, max_size=8), st.text(min_size=1, max_size=8), st.text(max_size=8), st.text(max_size=8))
def test_no_two_entries_share_a_term(name: str, other: str, value: str, another: str) -> None:
    shared = set(filters.terms({name: value})) & set(filters.terms({other: another}))
    assert not shared or name == other


def test_the_longest_value_makes_a_term_that_lucene_takes() -> None:
    assert all(len(term.encode()) < 32_766 for term in filters.terms({"名": "𠮷" * 50_000, "𠮷" * 50_000: "x"}))


@given(st.datetimes(timezones=st.sampled_from([UTC, timezone(timedelta(hours=8)), timezone(timedelta(hours=-11))])))
def test_times_are_exact_and_know_their_offset(moment: datetime) -> None:
    assert datetime(1970, 1, 1, tzinfo=UTC) + timedelta(microseconds=filters.microseconds(moment)) == moment


def test_an_address_never_shows_its_credentials() -> None:
    place = address("elasticsearch+https://ingest:p%40ss@es1:9243,es2/prefix?ca_certs=/etc/ca.pem")
    assert place.hosts == ("https://es1:9243/prefix", "https://es2:443/prefix")
    assert (place.user, place.password, place.ca_certs) == ("ingest", "p@ss", "/etc/ca.pem")
    assert "ingest" not in place.shown and "p@ss" not in place.shown and "p@ss" not in repr(place)


def test_an_api_key_stands_where_the_password_does() -> None:
    place = address("elasticsearch+http://:a2V5@localhost")
    assert (place.api_key, place.user, place.hosts) == ("a2V5", "", ("http://localhost:9200",))


@pytest.mark.parametrize("url", ["elasticsearch+ftp://u:secret@h", "elasticsearch+http://", "u:secret@h"])
def test_a_wrong_address_is_refused_without_repeating_it(url: str) -> None:
    with pytest.raises(BadRequest) as problem:
        address(url)
    assert "secret" not in str(problem.value)


@pytest.mark.parametrize("name", ["", "A", "a/b", "a*", "_all", "-a", "a,b", "x" * 201])
def test_a_name_that_would_reach_other_indices_is_refused(name: str) -> None:
    with pytest.raises(BadRequest):
        mapping.check_name(name)


def test_the_template_for_operators_is_the_one_in_the_package() -> None:
    """To write it anew: python -m pipeline.stores.elasticsearch_mapping > deploy/elasticsearch/index.json"""
    shipped = Path(__file__).parents[2] / "deploy" / "elasticsearch" / "index.json"
    assert json.loads(shipped.read_text()) == mapping.template()
