"""Logs: one event a line, readable or JSON, with secrets taken out wherever they come from."""

from __future__ import annotations

import json
import logging
import re
import sys
from datetime import UTC, datetime

from pipeline.settings import SECRETS, Settings

FIELDS = ("stage", "run", "batch", "document", "documents", "stopped", "status", "code", "seconds", "token", "node", "queue", "number")
"""Extra fields that events may carry; no content among them."""
_URL = re.compile(r"(\w+://)[^\s/@]+@")
_BEARER = re.compile(r"(?i)(bearer\s+|api[_-]?key[\"'=:\s]+)[^\s\"',]+")


class Redaction(logging.Filter):
    """Takes secrets out of every record: those of the settings by value, others by shape."""

    def __init__(self, settings: Settings) -> None:
        super().__init__()
        self._secrets = [value for name in SECRETS if (value := str(getattr(settings, name)))]

    def filter(self, record: logging.LogRecord) -> bool:
        text = clean(record.getMessage(), self._secrets)
        record.msg, record.args = text, None
        if record.exc_info and not record.exc_text:
            record.exc_text = logging.Formatter().formatException(record.exc_info)
        if record.exc_text:
            record.exc_text = clean(record.exc_text, self._secrets)
        return True


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
    for chatty in ("httpx", "httpcore", "openai", "elastic_transport", "alembic", "amqp"):
        logging.getLogger(chatty).setLevel(logging.WARNING)
