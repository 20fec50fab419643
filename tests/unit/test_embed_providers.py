from __future__ import annotations

import pytest

from pipeline import embed
from pipeline.embed.providers import PROVIDERS, max_tokens, prefixes
from pipeline.errors import BadRequest, PipelineError, Unsupported
from pipeline.settings import Settings


@pytest.mark.parametrize(
    ("model", "pair"),
    [
        ("intfloat/multilingual-e5-large", ("query: ", "passage: ")),
        ("e5-small-v2", ("query: ", "passage: ")),
        ("nomic-embed-text:latest", ("search_query: ", "search_document: ")),
        ("text-embedding-3-small", ("", "")),
        ("BAAI/bge-m3", ("", "")),
    ],
)
def test_the_words_before_a_text_follow_from_the_model(model: str, pair: tuple[str, str]) -> None:
    assert prefixes(model) == pair


@pytest.mark.parametrize("name", sorted(PROVIDERS))
def test_every_preset_is_complete(name: str) -> None:
    row = PROVIDERS[name]
    assert 0 < row.batch_size <= 2048 and row.max_tokens <= row.batch_tokens
    address = "" if row.base_url else "http://127.0.0.1:9/v1"
    assert embed.create(Settings(embedder=f"{name}:m", embedder_base_url=address)).profile.name == f"{name}:m"
    assert max_tokens(row, "m") == row.max_tokens


@pytest.mark.parametrize(
    ("given", "error", "said"),
    [
        (Settings(embedder="nonsense:m"), Unsupported, "nonsense"),
        (Settings(embedder="openai"), BadRequest, "model"),
        (Settings(embedder="openai:"), BadRequest, "model"),
        (Settings(embedder="azure:m"), BadRequest, "address"),
        (Settings(embedder="openai:m", embedder_base_url="nowhere"), BadRequest, "DUJIANG_EMBEDDER_BASE_URL"),
    ],
)
def test_a_wrong_setting_is_named_at_once(given: Settings, error: type[PipelineError], said: str) -> None:
    with pytest.raises(error) as caught:
        embed.create(given)
    assert said in caught.value.detail and caught.value.hint
