"""The OpenAPI document: FastAPI's own, with the bodies that are read by hand and problem answers."""

from __future__ import annotations

from typing import Any

from fastapi import FastAPI
from fastapi.openapi.utils import get_openapi
from pydantic import BaseModel
from pydantic.json_schema import models_json_schema

from orchestrator.api.errors import MEDIA_TYPE
from orchestrator.domain.spec import JobSpec
from orchestrator.wire import Problem, ReportBody, RetryRequest, ScaleRequest

_TEMPLATE = "#/components/schemas/{model}"
_BODIES: tuple[type[BaseModel], ...] = (JobSpec, RetryRequest, ScaleRequest, ReportBody, Problem)


def problems(*statuses: int) -> dict[int | str, dict[str, Any]]:
    """The error answers of a route; every route may answer 422, 500 and 503 too."""
    content = {MEDIA_TYPE: {"schema": {"$ref": _TEMPLATE.format(model="Problem")}}}
    return {
        status: {"description": "A problem document", "content": content}
        for status in sorted({400, 422, 500, 503, *statuses})
    }


def request_body(model: type[BaseModel], *, required: bool = True) -> dict[str, Any]:
    schema = {"schema": {"$ref": _TEMPLATE.format(model=f"{model.__name__}-Body")}}
    return {"requestBody": {"required": required, "content": {"application/json": schema, "application/yaml": schema}}}


def describe(app: FastAPI) -> dict[str, Any]:
    """Built once, at the first question."""
    if app.openapi_schema is None:
        document = get_openapi(title=app.title, version=app.version, description=app.description, routes=app.routes)
        schemas = document.setdefault("components", {}).setdefault("schemas", {})
        _, bodies = models_json_schema([(model, "validation") for model in _BODIES], ref_template=_TEMPLATE)
        for name, schema in bodies["$defs"].items():
            schemas.setdefault(name, schema)
        for model in _BODIES:
            schemas[f"{model.__name__}-Body"] = bodies["$defs"][model.__name__]
        app.openapi_schema = document
    return app.openapi_schema
