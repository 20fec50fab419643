"""What every registered embedder must do, whatever makes its vectors."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from pipeline import embed, registry
from pipeline.embed import EMBEDDERS
from pipeline.embed.providers import PROVIDERS
from pipeline.protocols import Embedder
from pipeline.settings import Settings
from tests.simulators.model_server import ModelServer

TEXTS = [
    "The sluice gate was repaired in March.",
    "水闸于三月维修。",
    "",
    " ",
    "a",
    "😀",
    "x" * 3_000,
    "broken \ud83d half",
    "NUL \x00 byte",
    "line\nbreak\ttab",
]


@pytest.fixture(scope="module")
def server() -> Iterator[ModelServer]:
    with ModelServer(dim=64) as running:
        yield running


@pytest.fixture(scope="module", params=sorted(EMBEDDERS))
def configured(request: pytest.FixtureRequest, server: ModelServer) -> Settings:
    name = request.param
    return Settings(embedder=f"{name}:stub" if name in PROVIDERS else name, embedder_base_url=server.url)


@pytest.fixture(scope="module")
def embedder(configured: Settings) -> Embedder:
    return embed.create(configured)


def test_every_text_gets_one_finite_vector_of_length_one(embedder: Embedder) -> None:
    made = embedder.encode(TEXTS)
    assert made.vectors.shape[0] == len(TEXTS)
    assert made.vectors.dtype == np.float32 and made.vectors.flags.c_contiguous
    assert np.isfinite(made.vectors).all()
    assert np.allclose(np.linalg.norm(made.vectors, axis=1), 1.0, atol=1e-3)
    assert embedder.profile.dimension == made.vectors.shape[1]
    assert (made.model, made.revision) == (embedder.profile.name, embedder.profile.revision)


def test_questions_live_in_the_same_space(embedder: Embedder) -> None:
    asked = embedder.encode_queries(["When was the sluice gate repaired?"]).vectors
    near, far = embedder.encode(["When was the sluice gate repaired?", "Quantum chromodynamics."]).vectors
    assert asked.shape == (1, embedder.profile.dimension)
    assert asked[0] @ near > asked[0] @ far


def test_the_order_of_the_texts_is_kept(embedder: Embedder) -> None:
    texts = [f"report number {number}" for number in range(150)]
    made = embedder.encode(texts).vectors
    picked = [149, 0, 75]
    again = embedder.encode([texts[number] for number in picked]).vectors
    assert np.allclose(again, made[picked], atol=1e-4)


def test_no_text_gives_no_vector(embedder: Embedder) -> None:
    assert embedder.encode([]).vectors.shape[0] == 0


def test_the_profile_is_known_beforehand_and_stays(configured: Settings, embedder: Embedder) -> None:
    before = embed.profile(configured)
    embedder.encode(["one"])
    after = embedder.profile
    assert (before.name, before.revision, before.batch_size) == (after.name, after.revision, after.batch_size)
    assert before.dimension in {None, after.dimension}
    assert before.name and before.revision
    assert 0 < before.max_tokens <= before.batch_tokens and before.batch_size > 0
    assert 0 <= before.lexical_weight <= 1 and 0 <= before.refuse_below <= 1
    assert before.in_process == (registry.split(configured.embedder)[0] not in PROVIDERS)


@settings(max_examples=8, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(texts=st.lists(st.text(max_size=80), min_size=1, max_size=4))
def test_any_text_at_all_is_embedded(embedder: Embedder, texts: list[str]) -> None:
    made = embedder.encode(texts).vectors
    assert made.shape == (len(texts), embedder.profile.dimension)
    assert np.isfinite(made).all()
