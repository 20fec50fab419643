"""Logs: one event a line, readable or JSON, with secrets taken out wherever they come from."""

from __future__ import annotations

import json
import logging
import re
import sys
import traceback
from collections.abc import Generator, Mapping
from contextlib import contextmanager
from contextvars import ContextVar
from datetime import UTC, datetime
from types import MappingProxyType

from pipeline.errors import PipelineError
from pipeline.settings import SECRETS, Settings

FIELDS = (
    "stage",
    "run",
    "batch",
    "token",
    "document",
    "attempt",
    "documents",
    "stopped",
    "status",
    "code",
    "seconds",
    "node",
    "queue",
    "number",
)
"""Extra fields that events may carry; no content among them."""
_NOTHING: Mapping[str, object] = MappingProxyType({})
_BOUND: ContextVar[Mapping[str, object]] = ContextVar("bound", default=_NOTHING)
_URL = re.compile(r"(\w+://)[^\s/@]+@")
_BEARER = re.compile(r"(?i)(bearer\s+|api[_-]?key[\"'=:\s]+)[^\s\"',]+")


@contextmanager
def bound(**fields: object) -> Generator[None]:
    """Every event of this thread within the block carries these fields, whoever writes it."""
    token = _BOUND.set({**_BOUND.get(), **fields})
    try:
        yield
    finally:
        _BOUND.reset(token)


class Redaction(logging.Filter):
    """Takes secrets out of every record: those of the settings by value, others by shape. What is bound goes in.

    Of a failure in a stage that is none of ours only the kind and the lines of code are kept: its words may be those of a document.
    """

    def __init__(self, settings: Settings) -> None:
        super().__init__()
        self._secrets = [value for name in SECRETS if (value := str(getattr(settings, name)))]

    def filter(self, record: logging.LogRecord) -> bool:
        text = clean(record.getMessage(), self._secrets)
        record.msg, record.args = text, None
        for name, value in _BOUND.get().items():
            if not hasattr(record, name):
                setattr(record, name, value)
        if record.exc_info and not record.exc_text:
            at_work = bool(_BOUND.get())
            record.exc_text = _told(record.exc_info[1]) if at_work else logging.Formatter().formatException(record.exc_info)
        if record.exc_text:
            record.exc_text = clean(record.exc_text, self._secrets)
        return True


def _told(error: BaseException | None) -> str:
    """Traceback of a failure and of what caused it, oldest first."""
    parts: list[str] = []
    while error is not None:
        words = f"{type(error).__name__}: {error}" if isinstance(error, PipelineError) else type(error).__name__
        parts.append("".join(["Traceback (most recent call last):\n", *traceback.format_tb(error.__traceback__), words]))
        error = error.__cause__ or (None if error.__suppress_context__ else error.__context__)
    return "\n\n".join(reversed(parts))


def clean(text: str, secrets: list[str]) -> str:
    """`text` without the given secrets, user names in URLs, and bearer tokens."""
    for secret in secrets:
        text = text.replace(secret, "***")
    return _BEARER.sub(r"\1***", _URL.sub(r"\1***@", text))


class TextLines(logging.Formatter):
    """``12:00:01 INFO stage done stage=parse batch=3 documents=64 seconds=0.41``."""

    def format(self, record: logging.LogRecord) -> str:
        extra = " ".join(f"{name}={getattr(record, name)}" for name in FIELDS if hasattr(record, name))
        line = f"{datetime.fromtimestamp(record.created, UTC):%H:%M:%S} {record.levelname} {record.getMessage()}{' ' if extra else ''}{extra}"
        return f"{line}\n{record.exc_text}" if record.exc_text else line


class JsonLines(logging.Formatter):
    """One JSON object a line."""

    def format(self, record: logging.LogRecord) -> str:
        event: dict[str, object] = {
            "at": datetime.fromtimestamp(record.created, UTC).isoformat(),
            "level": record.levelname.lower(),
            "logger": record.name,
            "event": record.getMessage(),
        }
        event |= {name: getattr(record, name) for name in FIELDS if hasattr(record, name)}
        if record.exc_text:
            event["traceback"] = record.exc_text
        return json.dumps(event, ensure_ascii=False, default=str)


def configure(settings: Settings) -> None:
    """Send all logs of this process to standard error, in the configured shape."""
    handler = logging.StreamHandler(sys.stderr)
    handler.addFilter(Redaction(settings))
    handler.setFormatter(JsonLines() if settings.log_format == "json" else TextLines())
    root = logging.getLogger()
    root.handlers[:] = [handler]
    root.setLevel(settings.log_level.upper())
    # It would repeat a failure's words; the stage has told it already.
    logging.getLogger("celery.app.trace").setLevel(logging.CRITICAL)
    for chatty in ("httpx", "httpcore", "openai", "elastic_transport", "alembic", "amqp", "celery", "kombu"):
        logging.getLogger(chatty).setLevel(logging.WARNING)
