"""A fake service whose answers have a hostile text in every text field."""

from __future__ import annotations

import json
from collections.abc import Mapping
from itertools import count
from pathlib import Path
from typing import Any

from pydantic import BaseModel

from orchestrator.wire.cluster_views import ClusterView, NodeView
from orchestrator.wire.credential_views import SecretView, TokenView
from orchestrator.wire.history_views import MetricsView, SnapshotView, StacksView
from orchestrator.wire.insight import GoodputView, SharesView, WhyView
from orchestrator.wire.job_views import DeletionView, EventView, JobView
from orchestrator.wire.plans import PlanView
from orchestrator.wire.problems import Problem
from orchestrator.wire.webhook_views import NewWebhookView, WebhookView
from tests.cli.fake_service import Answer, FakeService

_LISTS: Mapping[str, type[BaseModel]] = {
    "jobs": JobView,
    "events": EventView,
    "snapshots": SnapshotView,
    "stacks": StacksView,
    "clusters": ClusterView,
    "nodes": NodeView,
    "tokens": TokenView,
    "secrets": SecretView,
    "webhooks": WebhookView,
}
_SINGLE: Mapping[str, type[BaseModel]] = {"why": WhyView, "metrics": MetricsView, "plan": PlanView}


class EvilService(FakeService):
    def __init__(self, root: Path) -> None:
        super().__init__(root)
        self.text, self.refuses, self.state, self._requests = "", False, "FAILED", count(1)

    def answer(self, method: str, path: str, query: dict[str, str], body: bytes, key: str | None) -> Answer:
        if self.refuses:
            return Answer(422, fill(Problem, self.text, status=422))
        *before, last = path.removeprefix("/api/v1/").split("/")
        if method == "DELETE":
            return Answer(200, fill(DeletionView, self.text)) if before == ["jobs"] else Answer(204)
        if last == "logs":
            return Answer(200, text=f"{self.text}\nand more {self.text}")
        if last == "goodput":
            return Answer(200, fill(GoodputView if before else SharesView, self.text))
        if method == "POST" and last in ("secrets", "webhooks"):
            return Answer(201, fill(SecretView if last == "secrets" else NewWebhookView, self.text))
        if method == "GET" and last in _LISTS and before in ([], ["jobs", before[-1] if before else ""]):
            fresh = {"wish": next(self._requests)} if last == "stacks" else {}
            return Answer(200, {"items": [fill(_LISTS[last], self.text, **fresh)], "next_cursor": None})
        model = _SINGLE.get(last, JobView)
        return Answer(200, fill(model, self.text, **({"state": self.state} if model is JobView else {})))


def fill(model: type[BaseModel], text: str, **known: object) -> dict[str, Any]:
    """A document that is valid for the model, with `text` in every text field."""
    schema = model.model_json_schema(mode="serialization", by_alias=True)
    made = _sample(schema, schema.get("$defs", {}), text)
    assert isinstance(made, dict)
    document = {**made, **(_AT_REST if model is JobView else {}), **known}
    model.model_validate_json(json.dumps(document))
    return document


_AT_REST = {"state": "FAILED", "retrying": False, "cancelling": False, "pending": []}
_SPEC = {"name": "gpt", "run": {"script": "train.py"}}


def _sample(schema: Mapping[str, Any], known: Mapping[str, Any], text: str) -> Any:
    if "$ref" in schema:
        name = schema["$ref"].rpartition("/")[2]
        labels = {"a": text.replace("\0", "")}  # no spec has NUL
        return {**_SPEC, "labels": labels} if name == "JobSpec" else _sample(known[name], known, text)
    if "const" in schema or "enum" in schema:
        return schema.get("const", schema.get("enum", [None])[-1])
    for choice in schema.get("anyOf", ()):
        if choice.get("type") != "null":
            return _sample(choice, known, text)
    match schema.get("type"):
        case "string":
            return "2026-01-02T03:04:05Z" if schema.get("format") == "date-time" else f"{text} seen"
        case "integer" | "number":
            return 1
        case "boolean":
            return True
        case "array":
            return [_sample(schema.get("items", {}), known, text)]
        case "object" if "properties" in schema:
            return {name: _sample(below, known, text) for name, below in schema["properties"].items()}
        case "object":
            return _sample_map(schema, known, text)
    return f"{text} seen"


def _sample_map(schema: Mapping[str, Any], known: Mapping[str, Any], text: str) -> Any:
    value = schema.get("additionalProperties", True)
    names = schema.get("propertyNames", {})
    key = _sample(names, known, text) if "$ref" in names or "enum" in names else f"{text} key"
    return {key: f"{text} value" if isinstance(value, bool) else _sample(value, known, text)}
