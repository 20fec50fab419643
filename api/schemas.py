"""Request bodies. Unknown fields are refused; answers are the façade's views, whose field names are the JSON names."""

from __future__ import annotations

from datetime import datetime
from typing import Annotated, Literal

from pydantic import AliasChoices, BaseModel, ConfigDict, Field, StringConstraints, field_validator, model_validator

Name = Annotated[str, StringConstraints(min_length=1, max_length=200)]
Value = str | int | float | bool | None
Meta = dict[str, Value | list[str]]
Permission = Literal["read", "write", "admin"]


class Strict(BaseModel):
    """A body whose unknown fields are refused."""

    model_config = ConfigDict(extra="forbid", allow_inf_nan=False)


class TuningIn(Strict):
    """A collection's own search settings. What is left out stays; null takes a setting back."""

    top_k: int | None = Field(None, ge=1, le=1000)
    score_threshold: float | None = Field(None, ge=0, le=1)
    merge: Literal["weighted", "rrf"] | None = None
    lexical_weight: float | None = Field(None, ge=0, le=1)
    widen: str | None = Field(None, description="off, section, or 1 to 8 chunks before and after.")


class LabelledIn(Strict):
    """A question, and whether the documents answer it."""

    question: str = Field(min_length=1, max_length=8000)
    answerable: bool


class CalibrateIn(Strict):
    """Labelled questions from which the refusal threshold is taken."""

    questions: list[LabelledIn] = Field(min_length=2, max_length=5000)
    cap: float = Field(0.05, ge=0, le=1, description="Most of the answerable ones that may be refused.")
    dry_run: bool = Field(False, description="Only show what would be stored.")


class CollectionIn(Strict):
    """A new collection. What is left out is taken from the server's settings."""

    name: Name
    chunker: str = Field("", examples=["sections", "windows:256/32"])
    embedder: str = Field("", examples=["local", "openai:text-embedding-3-small"])
    options: dict[str, str] = Field(default_factory=dict, description="Chunker options, e.g. chunk_token_num and delimiter.")
    search: TuningIn | None = Field(None, description="Search settings.")


class DocumentIn(Strict):
    """One document given as text."""

    key: str = Field("", max_length=2000, validation_alias=AliasChoices("key", "name"), description="Identity: the same key replaces the document.")
    text: str = Field(validation_alias=AliasChoices("text", "content"))
    title: str = ""
    url: str = ""
    media_type: str = Field("", description="Taken from the key's suffix when empty, else text/plain.", examples=["text/markdown"])
    metadata: Meta = Field(default_factory=dict)

    @model_validator(mode="after")
    def _named(self) -> DocumentIn:
        if not (self.key or self.url):
            raise ValueError("a document needs a key, a name or a url")
        return self


class DocumentsIn(Strict):
    """Documents given as text, in one run."""

    documents: list[DocumentIn] = Field(min_length=1, max_length=10_000)
    metadata: Meta = Field(default_factory=dict, description="Given to every document; its own metadata wins.")
    options: dict[str, str] = Field(
        default_factory=dict, description='Parse options, e.g. {"pages": "1-3"} for PDF, {"content": "article"} for web pages.'
    )
    lane: Literal["interactive", "bulk"] | None = Field(None, description="Interactive for a few documents when left out.")
    source: str = Field("", max_length=200)


class FileIn(Strict):
    """What is known of one uploaded file; the list stands in the order of the files."""

    key: str = Field("", max_length=4000)
    title: str = ""
    url: str = ""
    media_type: str = ""
    metadata: Meta = Field(default_factory=dict)


class FilterIn(Strict):
    """One condition on metadata."""

    name: str
    op: Literal["eq", "ne", "in", "gt", "gte", "lt", "lte", "exists"] = "eq"
    value: Value | list[Value] = None


class QuestionIn(Strict):
    """What search and ask have in common."""

    query: str = Field(min_length=1, max_length=20_000, validation_alias=AliasChoices("query", "question", "text"))
    collections: list[Name] = Field(
        default_factory=list, validation_alias=AliasChoices("collections", "collection"), description="All that the key may read when left out."
    )
    mode: Literal["hybrid", "participle", "keyword", "semantic", "graph"] = "hybrid"
    k: int | None = Field(None, ge=1, le=1000, validation_alias=AliasChoices("k", "top_k"), description="As the collections are set, else 10.")
    merge: Literal["weighted", "rrf"] | None = Field(None, description="How full text and vectors are merged in hybrid; as the collections are set.")
    lexical_weight: float | None = Field(None, ge=0, le=1, description="Share of full text in hybrid; as each collection is set.")
    assist: list[str] = Field(
        default_factory=list,
        description="What a model does before the search: rewrite, align, multi_query, keywords; none: not even what the server does by itself.",
    )
    widen: str = Field(
        "", description="Show hits with their surroundings: off, section, or 1 to 8 chunks before and after.", examples=["1", "section"]
    )
    score_threshold: float | None = Field(None, ge=0, le=1)
    filters: list[FilterIn | str] | dict[str, Value | list[Value]] = Field(
        default_factory=list[FilterIn | str], examples=[["year>=2020"]], description="All must hold; an object of names and values means equality."
    )
    as_of: datetime | None = Field(None, description="Only what was valid then; with a time zone.")

    @field_validator("collections", mode="before")
    @classmethod
    def _one_is_a_list(cls, value: object) -> object:
        return [value] if isinstance(value, str) else value

    @field_validator("query")
    @classmethod
    def _says_something(cls, value: str) -> str:
        if not value.strip():
            raise ValueError("is empty")
        return value

    @field_validator("as_of")
    @classmethod
    def _aware(cls, value: datetime | None) -> datetime | None:
        if value is not None and value.tzinfo is None:
            raise ValueError("needs a time zone, e.g. 2024-05-01T00:00:00+08:00")
        return value


class SearchIn(QuestionIn):
    """A search."""

    trace: bool = Field(True, description="Answer with each step's parameters, time and degradation.")


class TurnIn(Strict):
    """An earlier turn of the conversation."""

    role: Literal["user", "assistant", "system"]
    content: str


class AskIn(QuestionIn):
    """A question to be answered."""

    trace: bool = Field(False, description="Answer with each step's parameters, and with the evidence that was sent.")
    stream: bool = Field(False, description="Answer as server-sent events: `token` events, then `answer`.")
    history: list[TurnIn] = Field(default_factory=list[TurnIn], max_length=200)
    system: str = ""
    temperature: float | None = Field(None, ge=0, le=2)
    top_p: float | None = Field(None, gt=0, le=1)
    max_tokens: int | None = Field(None, ge=1)


class SourceIn(Strict):
    """A new source. Which options a kind takes is listed under `/source-kinds`."""

    name: str = Field(min_length=1, max_length=64)
    kind: str = Field(examples=["feishu", "yuque", "web", "folder"])
    collection: Name
    options: dict[str, str] = Field(default_factory=dict, examples=[{"folder_token": "fldcn…", "app_id": "cli_…"}])
    secrets: dict[str, str] = Field(
        default_factory=dict,
        description="Sealed, and never shown again; `env:NAME` is read where the workers run, and takes an administrator.",
        examples=[{"app_secret": "…"}],
    )
    cron: str = Field("", description="When to sync by itself.", examples=["0 2 * * *"])
    timezone: str = Field("UTC", examples=["Asia/Shanghai"])
    jitter_s: float = Field(0.0, ge=0, le=86400, description="Begin up to so many seconds later.")


class SourceChangeIn(Strict):
    """What is to change; the rest stays. An empty option is taken away."""

    options: dict[str, str] = Field(default_factory=dict)
    secrets: dict[str, str] = Field(default_factory=dict)
    cron: str | None = None
    timezone: str | None = None
    jitter_s: float | None = Field(None, ge=0, le=86400)
    forget_deleted: bool = Field(False, description="Documents that people deleted here may come back with the next sync.")


class SyncIn(Strict):
    """How to sync."""

    full: bool = Field(False, description="Fetch everything again, whatever the source says has changed.")


class PruneIn(Strict):
    """A person's word."""

    approve: bool


class KeyIn(Strict):
    """A new API key."""

    name: Name
    collections: list[Name] = Field(default_factory=list, description="Scope; all when empty.")
    permissions: list[Permission] = Field(default=["read", "write"], min_length=1)


class FieldErrorOut(BaseModel):
    """One wrong field."""

    pointer: str
    detail: str


class ProblemOut(BaseModel):
    """RFC 9457."""

    type: str
    title: str
    status: int
    detail: str
    code: str
    hint: str
    document: str
    stage: str
    errors: list[FieldErrorOut]


class SelectionIn(Strict):
    """Which dead letters; what is left out selects all that the key may change."""

    document_ids: list[str] = Field(default_factory=list, max_length=10_000)
    collections: list[Name] = Field(default_factory=list, max_length=1000)
    run_id: str = ""
    code: str = ""
    stage: Literal["", "load", "parse", "chunk", "embed", "index"] = ""
    dry_run: bool = Field(False, description="Only say how many there are.")


class WeightIn(Strict):
    """A tenant's share of the workers beside others."""

    weight: float | None = Field(None, ge=0.01, le=1000, description="2 gets twice as many batches as 1.")
    most: int | None = Field(None, ge=0, le=1000, description="Batches of one stage at once; 0: any number.")


class ReindexIn(Strict):
    """How the next generation is built. What is left out stays as it is."""

    embedder: str = ""
    chunker: str = ""
    options: dict[str, str] | None = Field(None, description="Chunker options.")
    dry_run: bool = Field(False, description="Only say what would be built.")
    accept_failures: bool = Field(False, description="Let the generation that is built answer although documents failed in it; those answer no more.")


class TombstoneIn(Strict):
    """One line of what was exported."""

    kind: Literal["document", "source", "collection", "tenant", "index"]
    id: Annotated[str, StringConstraints(min_length=1, max_length=255)]
    number: int = Field(0, ge=0, le=2**53)
    at: float = Field(ge=0)
    of: str = Field("", max_length=32)


class ReplayIn(Strict):
    """Deletions to be done again in a system that was restored."""

    entries: list[TombstoneIn] = Field(max_length=1000)
    dry_run: bool = Field(False, description="Only say what would be done.")


class RepairIn(Strict):
    """What to mend."""

    collection: str = Field("", description="All of them when left out.")
    deep: bool = Field(False, description="Open every kept output, too.")
    dry_run: bool = Field(False, description="Only say what would be done.")
