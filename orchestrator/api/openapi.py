"""The OpenAPI document: FastAPI's own, plus the bodies that Body.read parses, problem answers, examples and links."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

from fastapi import FastAPI
from fastapi.dependencies.models import Dependant
from fastapi.openapi.utils import get_openapi
from fastapi.routing import APIRoute, iter_route_contexts
from pydantic import BaseModel
from pydantic.json_schema import models_json_schema
from starlette.routing import BaseRoute

from orchestrator.api.bodies import Body
from orchestrator.api.errors import MEDIA_TYPE
from orchestrator.api.examples import EXAMPLES
from orchestrator.api.links import add_links
from orchestrator.domain.access.route_roles import Scope, find_rule
from orchestrator.wire.problems import Problem

_TEMPLATE = "#/components/schemas/{model}"
_PROBLEM = {
    "description": "A problem document",
    "content": {MEDIA_TYPE: {"schema": {"$ref": _TEMPLATE.format(model=Problem.__name__)}}},
}
_OF_ANY = (400, 401, 403, 422, 429, 500, 503)
_OF_A_BODY = (408, 413, 415)


def problems(*statuses: int) -> dict[int | str, dict[str, Any]]:
    """Return the errors of a route: those that any route may give, and `statuses`. `describe` adds those of a body."""
    return dict.fromkeys(sorted({*_OF_ANY, *statuses}), _PROBLEM)


def describe(app: FastAPI) -> dict[str, Any]:
    """Return the document, built at the first call."""
    if app.openapi_schema is None:
        document = get_openapi(title=app.title, version=app.version, description=app.description, routes=app.routes)
        _add_bodies(document, app.routes)
        _add_unchanged(document)
        _add_tokens(document)
        add_links(document)
        app.openapi_schema = _without_constants(document)
    return app.openapi_schema


def _add_bodies(document: dict[str, Any], routes: Sequence[BaseRoute]) -> None:
    """Add the request bodies of all routes with a Body, and the schema of Problem."""
    read = dict(_operations_with_bodies(routes))
    models: dict[type[BaseModel], None] = dict.fromkeys([Problem, *(body.model for body in read.values())])
    _, made = models_json_schema([(model, "validation") for model in models], ref_template=_TEMPLATE)
    schemas = document.setdefault("components", {}).setdefault("schemas", {})
    for name, schema in made["$defs"].items():
        schemas.setdefault(name, schema)  # an answer may have added the same schema
    for (method, path), body in read.items():
        operation = document["paths"][path][method.lower()]
        operation["requestBody"] = _request_body(body)
        operation["responses"] |= {str(status): _PROBLEM for status in _OF_A_BODY}


def _operations_with_bodies(routes: Sequence[BaseRoute]) -> Iterator[tuple[tuple[str, str], Body[Any]]]:
    """Yield pairs of (method, path) and body."""
    for context in iter_route_contexts(routes):
        route = context.original_route
        body = _body_of(route.dependant) if isinstance(route, APIRoute) else None
        if body is not None:
            yield from (((method, str(context.path)), body) for method in context.methods or ())


def _body_of(dependant: Dependant) -> Body[Any] | None:
    readers = (getattr(below.call, "__self__", None) for below in dependant.dependencies)
    return next((reader for reader in readers if isinstance(reader, Body)), None)


def _request_body(body: Body[Any]) -> dict[str, Any]:
    content: dict[str, Any] = {"schema": {"$ref": _TEMPLATE.format(model=body.model.__name__)}}
    examples = EXAMPLES.get(body.model)
    if examples is not None:
        content["examples"] = {name: {"value": value} for name, value in examples.items()}
    return {"required": body.required, "content": {"application/json": content, "application/yaml": content}}


def _add_unchanged(document: dict[str, Any]) -> None:
    """Add the answer 304 to every GET that returns JSON."""
    for path, operations in document["paths"].items():
        read = operations.get("get")
        if read is not None and path.startswith("/api/") and "application/json" in read["responses"]["200"]["content"]:
            read["responses"]["304"] = {"description": "The answer still has the ETag of `If-None-Match`"}


def _without_constants(value: Any) -> Any:
    """Replace `const` by an `enum` with one value, which means the same: client generators support it in a union."""
    if isinstance(value, list):
        return [_without_constants(each) for each in value]
    if not isinstance(value, dict):
        return value
    if isinstance(value.get("const"), str):
        return {**{name: each for name, each in value.items() if name != "const"}, "enum": [value["const"]]}
    return {name: _without_constants(each) for name, each in value.items()}


def _add_tokens(document: dict[str, Any]) -> None:
    """Declare the token on each operation that checks one. It is optional because an open service needs none."""
    document["components"]["securitySchemes"] = {"token": {"type": "http", "scheme": "bearer"}}
    for path, operations in document["paths"].items():
        for method, operation in operations.items():
            rule = find_rule(method.upper(), path)
            if rule is None or rule.scope is not Scope.PUBLIC:
                operation["security"] = [{"token": []}, {}]
