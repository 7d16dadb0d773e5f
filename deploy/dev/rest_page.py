"""Render docs/reference/rest.md from the service's own OpenAPI document."""

from __future__ import annotations

import json
import re
from collections import defaultdict
from collections.abc import Iterator, Mapping
from typing import Any

from fastapi import FastAPI

from orchestrator.api.app import build_api_routes
from orchestrator.api.openapi import describe

Node = Mapping[str, Any]
_SECTIONS = {"wishes": "Requests to a job"}  # other tags are their own heading
_COMMON = ("304", "400", "401", "403", "408", "413", "415", "422", "429", "500", "503")
_HEAD = """
Bodies are JSON or YAML. The path of an operation begins at the service's URL. Its heading is its `operationId`.

- Any operation may answer 400, 401, 403, 422, 429, 500 or 503 with a [`Problem`](#problem). One with a body may also
  answer 408, 413 or 415. Each operation lists its other errors.
- A `GET` of JSON has an `ETag`, and answers 304 to a matching `If-None-Match`.
- An operation takes a bearer token unless it says that it needs none. A service without tokens ignores it.
"""


def read_document() -> dict[str, Any]:
    """Return the OpenAPI document that a service has at `/openapi.json`, without its version."""
    return describe(FastAPI(title="Orchestrator", version="1", routes=list(build_api_routes())))


def render_rest_body() -> Iterator[str]:
    """Yield the page's lines below its title: the operations by tag, then the types."""
    document = read_document()
    yield from _HEAD.strip().splitlines()
    for tag, operations in _by_tag(document).items():
        yield from ("", f"## {_SECTIONS.get(tag, tag.capitalize())}")
        for method, path, operation in operations:
            yield from _render_operation(method, path, operation)
    yield from ("", "## Types")
    for name, schema in sorted(document["components"]["schemas"].items()):
        yield from _render_type(name, schema)


def _by_tag(document: Node) -> Mapping[str, list[tuple[str, str, Node]]]:
    found = defaultdict(list)
    for path, operations in document["paths"].items():
        for method, operation in operations.items():
            found[operation["tags"][0]].append((method, path, operation))
    found["reports"] = found.pop("reports")  # last, because only agents send them
    return found


def _render_operation(method: str, path: str, operation: Node) -> Iterator[str]:
    yield from ("", f"### {operation['operationId']}", "", f"    {method.upper()} {path}", "")
    if operation.get("description"):
        yield from (*operation["description"].splitlines(), "")
    parameters = operation.get("parameters", [])
    if parameters:
        yield from ("| parameter | in | type | default | |", "|---|---|---|---|---|")
        yield from (_parameter(each) for each in parameters)
        yield ""
    if "requestBody" in operation:
        yield f"- body: {_contents(operation['requestBody'])}"
    errors = [status for status in operation["responses"] if status[0] in "345" and status not in _COMMON]
    for status, answer in sorted(operation["responses"].items()):
        if status.startswith("2"):
            yield f"- {status}: {_contents(answer) or 'no body'}"
    if errors:
        yield f"- errors: {', '.join(sorted(errors))}"
    if "security" not in operation:
        yield "- needs no token"


def _parameter(each: Node) -> str:
    default = "required" if each.get("required") else _default(each["schema"])
    return _row(f"`{each['name']}`", each["in"], _type(each["schema"]), default, each.get("description", ""))


def _contents(part: Node) -> str:
    """Return the type of a body, or its media type if that is not JSON."""
    content = part.get("content", {})
    if "application/json" in content:
        return _type(content["application/json"].get("schema", {}))
    return ", ".join(f"`{media}`" for media in content)


def _render_type(name: str, schema: Node) -> Iterator[str]:
    yield from ("", f"### {name}", "")
    if schema.get("description"):
        yield from (*schema["description"].splitlines(), "")
    if "enum" in schema:
        yield f"One of {_values(schema)}."
        return
    required = schema.get("required", ())
    yield from ("| field | type | default | |", "|---|---|---|---|")
    for field, inner in schema.get("properties", {}).items():
        default = "required" if field in required else _default(inner)
        yield _row(f"`{field}`", _type(inner), default, inner.get("description", ""))


def _default(schema: Node) -> str:
    value = schema.get("default")
    return "" if value in (None, {}, [], "") else f"`{value if isinstance(value, str) else json.dumps(value)}`"


def _type(schema: Node) -> str:
    """Return a type as Markdown, with links to the types of this page."""
    if "$ref" in schema:
        name = schema["$ref"].rpartition("/")[2]
        return f"[`{name}`](#{name.lower()})"
    if "enum" in schema:
        return _values(schema)
    for union in ("anyOf", "oneOf"):
        if union in schema:
            return " or ".join(dict.fromkeys(_type(each) for each in schema[union]))
    match schema.get("type"):
        case "array":
            return f"list of {_type(schema.get('items', {}))}"
        case "object" if isinstance(schema.get("additionalProperties"), dict):
            return f"map to {_type(schema['additionalProperties'])}"
        case None:
            return "any"
        case kind:
            return schema.get("format") or str(kind)


def _values(schema: Node) -> str:
    return ", ".join(f"`{value}`" for value in schema["enum"])


def _row(*cells: str) -> str:
    return "| " + " | ".join(re.sub(r"\s+", " ", cell).replace("|", "\\|").strip() for cell in cells) + " |"
