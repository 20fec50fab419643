"""One frozen tree of settings, and the only reader of the environment.

Order: command-line flag, environment (our name, then the second choice that other tools use),
``dujiang.toml`` in the working folder, then in the data folder, then the default.
"""

from __future__ import annotations

import json
import os
import re
import tomllib
from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from pathlib import Path
from urllib.parse import urlsplit, urlunsplit

from pipeline.errors import BadRequest

ALLOCATOR: Mapping[str, str] = {
    "MALLOC_MMAP_THRESHOLD_": "67108864",
    "MALLOC_TRIM_THRESHOLD_": "134217728",
    "MALLOC_TOP_PAD_": "4194304",
}
"""For glibc: a batch's vectors and texts are kept for the next batch instead of being returned to the kernel and faulted in again."""

SECRETS = frozenset(
    {"artifacts_access_key", "artifacts_secret_key", "embedder_api_key", "llm_api_key", "reranker_api_key", "api_key", "flower_auth", "sealing_key"}
)

SECOND_CHOICE: Mapping[str, tuple[str, ...]] = {
    "redis_url": ("REDIS_URL",),
    "store_url": ("ELASTICSEARCH_URL",),
    "otel_endpoint": ("OTEL_EXPORTER_OTLP_ENDPOINT",),
    "embedder_base_url": ("OPENAI_BASE_URL",),
    "embedder_api_key": ("OPENAI_API_KEY",),
    "artifacts_endpoint": ("AWS_ENDPOINT_URL",),
    "artifacts_region": ("AWS_REGION",),
    "artifacts_access_key": ("AWS_ACCESS_KEY_ID",),
    "artifacts_secret_key": ("AWS_SECRET_ACCESS_KEY",),
    "llm_base_url": ("OPENAI_BASE_URL",),
    "llm_api_key": ("OPENAI_API_KEY",),
}
"""Field → variables of other tools that are honoured after ``DUJIANG_<FIELD>``."""


@dataclass(frozen=True, slots=True)
class Settings:
    """Every value the product can be told. Empty strings mean "not given"."""

    home: str = ""
    """Absolute data folder."""
    redis_url: str = ""
    """Empty: an own server is started when needed."""
    broker_url: str = ""
    """Empty: Redis is the broker."""
    broker_queues: str = "classic"
    """Or quorum: replicated over RabbitMQ's nodes."""
    ledger_url: str = ""
    artifacts_url: str = ""
    artifacts_endpoint: str = ""
    """Of an S3-compatible store that is not AWS, e.g. http://127.0.0.1:9000."""
    artifacts_region: str = ""
    artifacts_access_key: str = ""
    artifacts_secret_key: str = ""
    store_url: str = ""
    chunker: str = "sections"
    embedder: str = "local"
    embedder_base_url: str = ""
    embedder_api_key: str = ""
    embedder_dimension: int = 0
    """0: the model's own."""
    embedder_rps: float = 0.0
    """Requests a second to the embedding server, over all workers; 0: the preset's, mostly none."""
    embedder_tpm: int = 0
    """Tokens a minute; 0: any number."""
    embedder_concurrency: int = 0
    """Requests at once, over all workers; 0: as many as there are threads."""
    llm: str = "extractive"
    assist: str = ""
    """What the model does for every question before the search: rewrite, align, multi_query, keywords, with commas."""
    llm_base_url: str = ""
    llm_api_key: str = ""
    llm_rps: float = 0.0
    llm_tpm: int = 0
    llm_concurrency: int = 0
    reranker: str = ""
    reranker_base_url: str = ""
    reranker_api_key: str = ""
    reranker_rps: float = 0.0
    reranker_tpm: int = 0
    reranker_concurrency: int = 0
    graph: str = "off"
    """The entity graph beside the index: off, terms (no model), light or general (both ask DUJIANG_LLM)."""
    tokenizer: str = "cl100k_base"
    host: str = "127.0.0.1"
    port: int = 8400
    root_path: str = ""
    public_url: str = ""
    url: str = ""
    """A remote system to talk to instead of this machine."""
    api_key: str = ""
    sealing_key: str = ""
    """Encrypts the secrets of sources in the ledger; empty: a key file in the data folder."""
    grounding_threshold: float = 0.0
    """Least share of an answer's sentences that its passages must support; 0: any."""
    grounding_action: str = "flag"
    """What becomes of an answer below it: flag (given, and marked) or refuse."""
    prices: str = ""
    """What models cost for a million tokens, as JSON: see `pipeline.pricing`; a table ``[prices]`` in dujiang.toml. Empty: costs stay unknown."""
    cache_ttl: int = 86400
    """Seconds an answer is kept; 0 turns the answer cache off."""
    log_level: str = "info"
    log_format: str = "text"
    flower_auth: str = ""
    """user:password that Flower asks for; empty: nothing, on loopback only."""
    metrics_collections: bool = False
    """Break documents in the metrics down by collection: a series for each of them."""
    otel_endpoint: str = ""
    """Where traces go, over OTLP and HTTP; empty: nowhere. Needs the extra dujiang[otel]."""
    otel_ratio: float = 1.0
    """Share of documents that are traced."""
    worker_processes: int = 0
    """Processes for parse and chunk; 0: one per core, four at most."""
    worker_threads: int = 8
    """Threads that wait for model servers, and so the most requests in flight to one."""
    lease_s: int = 60
    """Seconds a batch is leased to a worker; renewed every third of it."""
    stage_deadline_s: int = 900
    """Most seconds one batch may take in one stage, however alive its worker is."""
    parse_timeout_s: int = 120
    """Most CPU and wall seconds one document may take to parse."""
    parse_memory_mb: int = 1024
    """Address space of the process that parses."""
    max_file_mb: int = 200
    """Largest file that is read."""
    max_wait_hours: int = 72
    """Hours a document waits for a service that is away before it goes to the dead letters; a quota's own end is waited for, however far."""
    max_attempts: int = 5
    """Real failures of a document before it goes to the dead letters."""
    private_hosts: str = ""
    """Private hosts (``wiki.example``, ``*.example``) and networks (``10.1.0.0/16``) that sources may name, with commas; others are refused."""
    request_timeout_s: float = 60.0
    """Seconds to wait for a model server's answer."""
    keep_generations: int = 1
    """Earlier builds of a collection that stay in the store for a way back."""
    artifacts_keep_days: int = 30
    """How long stage outputs of retired versions are kept."""

    def __repr__(self) -> str:
        shown = ", ".join(f"{name}={value!r}" for name, value in self.masked().items())
        return f"Settings({shown})"

    def masked(self) -> dict[str, str | int | float]:
        """Every value, with secrets and passwords in URLs replaced by ``***``."""
        return {f.name: mask(f.name, getattr(self, f.name)) for f in fields(self)}


@dataclass(frozen=True, slots=True)
class Loaded:
    """Settings with the origin of each value, for ``config show``."""

    settings: Settings
    origin: Mapping[str, str] = field(default_factory=dict[str, str])
    """Field → ``flag``, an environment variable's name, a file's path, or ``default``."""


def mask(name: str, value: str | int | float) -> str | int | float:
    """Hide secrets by name, and user names and passwords inside URLs."""
    if name in SECRETS and value:
        return "***"
    if name.endswith("_url") and isinstance(value, str) and "@" in value:
        parts = urlsplit(value)
        return urlunsplit(parts._replace(netloc="***@" + parts.netloc.rpartition("@")[2]))
    return value


def load(flags: Mapping[str, object] | None = None, environ: Mapping[str, str] | None = None, cwd: Path | None = None) -> Loaded:
    """Read all sources once.

    Args:
        flags: field → value from the command line; None values are ignored.
        environ: the process's environment when None.
        cwd: folder whose ``dujiang.toml`` counts; the working folder when None.
    Raises: BadRequest naming the variable or file when a value cannot be read as its type.
    """
    env = os.environ if environ is None else environ
    given = {key: value for key, value in (flags or {}).items() if value is not None}
    here = _toml((cwd or Path.cwd()) / "dujiang.toml")
    home = _home(given, env, here)
    files = [here, _toml(Path(home) / "dujiang.toml")]
    values: dict[str, object] = {}
    origin: dict[str, str] = {}
    for spec in fields(Settings):
        raw, where = _first(spec.name, given, env, files)
        if where.startswith("OPENAI_") and _is_other(spec.name.partition("_")[0], given, env, files):
            raw, where = None, "default"
        if where == "default":
            values[spec.name], origin[spec.name] = _default(spec.name, spec.default, home), where
        else:
            values[spec.name], origin[spec.name] = _typed(spec.name, raw, spec.default, where), where
    values["home"] = home
    if values["prices"]:
        from pipeline import pricing

        # a list that cannot be read would stop documents at the first model that it should price
        pricing.load(str(values["prices"]))
    return Loaded(Settings(**values), origin)  # type: ignore[arg-type]


def _first(name: str, flags: Mapping[str, object], env: Mapping[str, str], files: list[tuple[str, Mapping[str, object]]]) -> tuple[object, str]:
    if name in flags:
        return flags[name], "flag"
    for variable in (f"DUJIANG_{name.upper()}", *SECOND_CHOICE.get(name, ())):
        if env.get(variable):
            return env[variable], variable
    for path, table in files:
        if name in table:
            return table[name], path
    return None, "default"


def _is_other(part: str, flags: Mapping[str, object], env: Mapping[str, str], files: list[tuple[str, Mapping[str, object]]]) -> bool:
    """True for another provider's preset: OpenAI's address and key must never reach it."""
    spec, _ = _first(part, flags, env, files)
    return str(spec or "").partition(":")[0].strip() not in {"", "openai", "local", "hashed", "extractive"}


def _home(flags: Mapping[str, object], env: Mapping[str, str], here: tuple[str, Mapping[str, object]]) -> str:
    raw, where = _first("home", flags, env, [here])
    if where != "default":
        return str(Path(str(raw)).expanduser().absolute())
    from platformdirs import user_data_dir

    return user_data_dir("dujiang", appauthor=False)


def _default(name: str, value: object, home: str) -> object:
    """Defaults that stand relative to the data folder."""
    folder = Path(home).as_posix()
    match name:
        case "ledger_url":
            return f"sqlite:///{folder}/ledger.db"
        case "artifacts_url":
            return f"file://{folder}/artifacts"
        case "store_url":
            return f"sqlite:///{folder}/store"
        case _:
            return value


def _typed(name: str, raw: object, default: object, where: str) -> object:
    text = json.dumps(raw, ensure_ascii=False) if isinstance(raw, dict) else str(raw).strip()
    try:
        if isinstance(default, bool):
            return text.lower() in {"1", "true", "yes", "on"}
        if isinstance(default, int):
            return int(text)
        if isinstance(default, float):
            return float(text)
    except ValueError:
        raise BadRequest(f"{where}: {name} must be a number, not {text!r}", hint=f"Correct {where}.", code="bad_setting") from None
    if name == "store_url" and where == "ELASTICSEARCH_URL" and re.match(r"https?://", text):
        return f"elasticsearch+{text}"
    return text


def _toml(path: Path) -> tuple[str, Mapping[str, object]]:
    if not path.is_file():
        return str(path), {}
    try:
        table = tomllib.loads(path.read_text(encoding="utf-8"))
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise BadRequest(f"{path} is not valid TOML: {error}", hint="Correct the file.", code="bad_setting") from error
    known = {f.name for f in fields(Settings)}
    unknown = sorted(set(table) - known)
    if unknown:
        raise BadRequest(f"{path} has unknown settings: {', '.join(unknown)}", hint=f"Known: {', '.join(sorted(known))}.", code="bad_setting")
    return str(path), table


def variable(name: str) -> str:
    """A variable that a person named, as a secret's place; empty when it is not set."""
    return os.environ.get(name, "")


def child_environment(settings: Settings) -> dict[str, str]:
    """The environment of a process that shall see the same settings: this one's, with every value of ours spelt out."""
    own = {f"DUJIANG_{f.name.upper()}": str(getattr(settings, f.name)) for f in fields(Settings) if getattr(settings, f.name) != ""}
    return {**ALLOCATOR, **os.environ, **own, "PYTHONUNBUFFERED": "1"}
