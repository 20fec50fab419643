"""Where a setting comes from, and what is never shown."""

from __future__ import annotations

from pathlib import Path

import pytest

from pipeline.errors import BadRequest
from pipeline.settings import load, mask


def test_flag_beats_environment_beats_file_beats_default(tmp_path: Path) -> None:
    (tmp_path / "dujiang.toml").write_text('chunker = "windows:128/16"\nport = 9000\nllm = "openai:file"\n')
    found = load({"port": 9002}, {"DUJIANG_HOME": str(tmp_path / "home"), "DUJIANG_PORT": "9001", "DUJIANG_LLM": "openai:env"}, tmp_path)
    settings, origin = found.settings, found.origin
    assert (settings.port, settings.llm, settings.chunker, settings.embedder) == (9002, "openai:env", "windows:128/16", "local")
    assert (origin["port"], origin["llm"], origin["chunker"], origin["embedder"]) == (
        "flag",
        "DUJIANG_LLM",
        str(tmp_path / "dujiang.toml"),
        "default",
    )


def test_ledger_artifacts_and_store_lie_in_the_data_folder(tmp_path: Path) -> None:
    settings = load(None, {"DUJIANG_HOME": str(tmp_path)}, tmp_path).settings
    assert settings.ledger_url == f"sqlite:///{tmp_path}/ledger.db"
    assert settings.store_url == f"sqlite:///{tmp_path}/store"
    assert settings.artifacts_url == f"file://{tmp_path}/artifacts"


def test_names_of_other_tools_are_a_second_choice(tmp_path: Path) -> None:
    env = {"REDIS_URL": "redis://a", "ELASTICSEARCH_URL": "http://es:9200", "OPENAI_API_KEY": "sk", "DUJIANG_LLM": "openai:m"}
    settings = load(None, env, tmp_path).settings
    assert (settings.redis_url, settings.store_url, settings.llm_api_key) == ("redis://a", "elasticsearch+http://es:9200", "sk")
    assert load(None, env | {"DUJIANG_REDIS_URL": "redis://b"}, tmp_path).settings.redis_url == "redis://b"


def test_openais_key_never_reaches_another_provider(tmp_path: Path) -> None:
    env = {"OPENAI_API_KEY": "sk", "OPENAI_BASE_URL": "https://o", "DUJIANG_LLM": "dashscope:qwen-plus", "DUJIANG_EMBEDDER": "openai:m"}
    settings = load(None, env, tmp_path).settings
    assert (settings.llm_api_key, settings.llm_base_url) == ("", "")
    assert (settings.embedder_api_key, settings.embedder_base_url) == ("sk", "https://o")


@pytest.mark.parametrize("content", ["port = ", "prot = 8400\n", 'port = "many"\n'])
def test_a_file_that_cannot_be_read_is_named(content: str, tmp_path: Path) -> None:
    (tmp_path / "dujiang.toml").write_text(content)
    with pytest.raises(BadRequest, match=r"dujiang\.toml"):
        load(None, {"DUJIANG_HOME": str(tmp_path / "home")}, tmp_path)


def test_secrets_and_passwords_are_masked(tmp_path: Path) -> None:
    settings = load({"llm_api_key": "sk-1", "redis_url": "redis://user:pw@host:1/0"}, {}, tmp_path).settings
    assert "sk-1" not in repr(settings) and "pw" not in repr(settings)
    assert mask("redis_url", "redis://user:pw@host:1/0") == "redis://***@host:1/0"
