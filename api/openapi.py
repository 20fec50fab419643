"""The API's description in OpenAPI 3.0, which the bundled Swagger UI and most client generators read."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, cast

from fastapi import FastAPI
from pydantic import BaseModel


def install(app: FastAPI, models: Sequence[type[BaseModel]]) -> None:
    """Describe the application.

    Args:
        models: bodies that are read by hand, and so are unknown to the framework.
    """
    app.openapi_version = "3.0.3"
    made = app.openapi
    ready: dict[str, Any] | None = None

    def openapi() -> dict[str, Any]:
        nonlocal ready
        if ready is None:
            page = made()
            schemas = page.setdefault("components", {}).setdefault("schemas", {})
            for model in models:
                schema = model.model_json_schema(ref_template="#/components/schemas/{model}")
                schemas.update(schema.pop("$defs", {}))
                schemas[model.__name__] = schema
            ready = cast("dict[str, Any]", lowered(page))
        return ready

    app.openapi = openapi


def lowered(value: object) -> object:
    """JSON Schema as OpenAPI 3.1 has it, in the words of 3.0: null, exclusive bounds, constants, examples."""
    if isinstance(value, list):
        return [lowered(item) for item in cast("list[object]", value)]
    if not isinstance(value, dict):
        return value
    found = {str(key): lowered(item) for key, item in cast("dict[object, object]", value).items()}
    _nullable(found)
    for name, bound in (("exclusiveMinimum", "minimum"), ("exclusiveMaximum", "maximum")):
        if isinstance(found.get(name), (int, float)) and not isinstance(found[name], bool):
            found[bound], found[name] = found[name], True
    if isinstance(found.get("const"), (str, int)):
        found["enum"] = [found.pop("const")]
    examples = found.get("examples")
    if isinstance(examples, list) and examples:
        found["example"] = cast("list[object]", found.pop("examples"))[0]
    return found


def _nullable(schema: dict[str, object]) -> None:
    choices = schema.get("anyOf")
    if not isinstance(choices, list):
        return
    kept = [item for item in cast("list[object]", choices) if item != {"type": "null"}]
    if len(kept) == len(cast("list[object]", choices)):
        return
    schema["nullable"] = True
    only = kept[0] if len(kept) == 1 else None
    if isinstance(only, dict) and "$ref" not in only:
        del schema["anyOf"]
        schema.update(cast("dict[str, object]", only))
    else:
        schema["anyOf"] = kept
