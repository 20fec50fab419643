"""A graph without a model: names that are one and names that are two, what a text speaks of, and where a walk leads."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from graphrag import ranking, search
from graphrag.contracts import ChunkRef, Contribution
from graphrag.extract_terms import IN_SENTENCE, LINKS, extract, names
from graphrag.resolve import key
from graphrag.snapshot import Snapshot
from pipeline.contracts import Chunk
from tests.unit.name_pairs import HARD, OTHER, SAME

TEXT = (
    "世界卫生组织（WHO）总干事在日内瓦表示，北京大学第一医院的李明教授在《柳叶刀》上发表了关于疫苗的研究。"
    "Apple Inc. released GB18030 support; Dr. Jane O'Neil of the University of Oxford spoke of it."
)


def chunked(text: str, *cuts: tuple[int, int]) -> list[Chunk]:
    spans = cuts or ((0, len(text)),)
    return [Chunk(f"c{number}", number, start, end, text[start:end]) for number, (start, end) in enumerate(spans)]


def said(contribution: Contribution) -> set[str]:
    return {mention.name for mention in contribution.mentions}


def test_names_of_one_thing_meet_and_look_alikes_do_not() -> None:
    missed = [pair for pair in SAME if key(pair[0]) != key(pair[1])]
    wrong = [pair for pair in (*OTHER, *HARD) if key(pair[0]) == key(pair[1])]
    assert len(missed) <= 2 and not wrong, (missed, wrong)


@settings(max_examples=200, deadline=None)
@given(st.text(max_size=60))
def test_a_key_is_a_key_of_itself_and_never_fails(name: str) -> None:
    assert key(key(name)) == key(name)


def test_both_scripts_give_their_names_once_each_with_what_stands_in_brackets() -> None:
    found = said(extract("d", 1, "", chunked(TEXT)))
    assert {
        "世界卫生组织",
        "WHO",
        "日内瓦",
        "北京大学第一医院",
        "李明",
        "柳叶刀",
        "Apple Inc",
        "GB18030",
        "Jane O'Neil",
        "University of Oxford",
    } <= found
    assert not {"The", "Dr", "of", "it"} & found


@settings(max_examples=150, deadline=None)
@given(
    st.lists(
        st.sampled_from(
            [
                "石橋站由林岑負責，",
                "Stone Bridge ",
                "was built in 1936. ",
                "《潮汐》",
                "（WHO）",
                "世界卫生组织",
                "GB18030 ",
                "\n\n",
                "Ａpple",
                "😀",
                "ß ",
            ]
        ),
        max_size=14,
    ),
    st.integers(1, 40),
)
def test_every_mention_stands_where_it_says(parts: list[str], size: int) -> None:
    text = "".join(parts)
    cuts = [(start, min(len(text), start + size)) for start in range(0, len(text), max(1, size // 2))]
    chunks = chunked(text, *cuts) if text else []
    made = extract("d", 1, "", chunks)
    for mention in made.mentions:
        chunk = chunks[mention.chunk]
        assert text[mention.start : mention.end] == mention.name
        assert chunk.start <= mention.start and mention.end <= chunk.end
    assert [(one.chunk, one.source, one.target) for one in made.links] == sorted((one.chunk, one.source, one.target) for one in made.links)
    assert all(link.source < link.target and {link.source, link.target} <= made.keys() for link in made.links)
    assert extract("d", 1, "", chunks) == made


def test_what_stands_in_two_windows_counts_once() -> None:
    text = "The keeper met Lin Cen at the bridge yesterday."
    both = extract("d", 1, "", chunked(text, (0, 30), (8, len(text))))
    assert [(one.name, one.chunk) for one in both.mentions if one.name == "Lin Cen"] == [("Lin Cen", 0)]


def test_a_list_of_many_names_ties_a_bounded_number() -> None:
    text = "present were " + ", ".join(f"Person{chr(65 + n % 26)}{chr(65 + n // 26)} Smith" for n in range(200)) + "."
    made = extract("d", 1, "", chunked(text))
    assert len(made.mentions) == 200 and len(made.links) <= min(LINKS, IN_SENTENCE * (IN_SENTENCE - 1) // 2)


def test_the_title_is_what_the_first_chunk_is_about() -> None:
    made = extract("d", 1, "Stone Bridge (1936)", chunked("It was built in a year of floods."))
    assert key("Stone Bridge (1936)") in made.keys() and key("Stone Bridge (1936)") != key("Stone Bridge (1987)")


def test_a_name_that_a_window_cuts_off_is_whole_in_the_next_one() -> None:
    for text, name in (("The keeper went to Stone Bridge today.", "Stone Bridge"), ("他说世界卫生组织今天开会。", "世界卫生组织")):
        cut = text.index(name) + len(name) - 2
        made = extract("d", 1, "", chunked(text, (0, cut), (text.index(name) - 2, len(text))))
        assert [one.name for one in made.mentions if one.name[:2] == name[:2]] == [name]


def test_names_in_a_question_are_found_as_the_longest_that_is_known() -> None:
    keys = sorted(key(name) for name in ("Stone Bridge", "Stone", "Lin Cen", "石桥站", "世界卫生组织"))
    numbers = {name: number for number, name in enumerate(keys)}

    def linked(text: str) -> set[str]:
        return {keys[number] for number in search.link(text, numbers)}

    assert linked("Who built the Stone Bridge that Lin Cen's father saw?") == {"stonebridge", "lincen"}
    assert linked("石橋站歸世界衛生組織管嗎") == {"石桥站", "世界卫生组织"}
    assert linked("who saw a stone") == set(), "a common word is no name"


# ---------------------------------------------------------------- the walk


def snapshot(mentions: list[tuple[int, int]], entities: int, chunks: int) -> Snapshot:
    refs = tuple(ChunkRef(f"c{number}", 0, 0, 1) for number in range(chunks))
    pairs = np.array(sorted(mentions), dtype=np.int32).reshape(-1, 2)
    none, nothing = np.zeros((0, 2), np.int32), np.zeros(0, np.float32)
    owners = np.arange(chunks, dtype=np.int32)
    names_ = tuple(f"e{number:03}" for number in range(entities))
    return Snapshot(1, names_, tuple(f"d{number}" for number in range(chunks)), refs, owners, pairs, np.ones(len(pairs), np.float32), none, nothing)


@pytest.mark.parametrize("seed", range(4))
def test_the_walk_ends_where_the_linear_system_says(seed: int) -> None:
    draw = np.random.default_rng(seed)
    entities, chunks = 12, 9
    mentions = sorted({(int(draw.integers(entities)), int(draw.integers(chunks))) for _ in range(40)})
    walk = ranking.prepare(snapshot(mentions, entities, chunks))
    start = np.zeros(entities + chunks)
    start[[mentions[0][0], entities + mentions[5][1]]] = 0.5
    matrix = np.zeros((entities + chunks, entities + chunks))
    matrix[entities + walk.chunk, walk.entity] = walk.forth
    matrix[walk.entity, entities + walk.chunk] = walk.back
    exact = np.linalg.solve(np.eye(entities + chunks) - ranking.ALPHA * matrix, (1 - ranking.ALPHA) * start)
    at_entities, at_chunks, sweeps = ranking.rank(walk, start[:entities], start[entities:], tolerance=1e-12)
    assert np.abs(np.concatenate([at_entities, at_chunks]) - exact / exact.sum()).sum() < 1e-9
    assert 0 < sweeps < ranking.SWEEPS


def test_a_walk_over_allowed_chunks_reaches_nothing_through_the_others() -> None:
    graph = snapshot([(0, 0), (1, 0), (1, 1), (2, 1)], 3, 2)
    start = np.array([1.0, 0.0, 0.0])
    _, free, _ = ranking.rank(ranking.prepare(graph), start, np.zeros(2))
    _, held, _ = ranking.rank(ranking.prepare(graph, np.array([False, True])), start, np.zeros(2))
    assert free[1] > 0.0 and held.sum() == 0.0


def test_an_empty_graph_and_an_empty_question_give_nothing() -> None:
    walk = ranking.prepare(snapshot([], 0, 0))
    assert ranking.rank(walk, np.zeros(0), np.zeros(0))[2] == 0
    assert names("") == []
