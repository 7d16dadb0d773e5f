"""Add links to the OpenAPI document (OpenAPI 3.1, 4.8.20): which field of an answer is a parameter of which request.

They are computed from the document itself. A new route under `/jobs/{job_id}` is linked from every answer with a job
without a change here.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

# For each view: which of its fields is which path parameter. A page is matched by the name of its item's view.
_GIVES: Mapping[str, Mapping[str, str]] = {
    "JobView": {"job_id": "id"},
    "SubmittedView": {"job_id": "id"},
    "TokenView": {"token_id": "id"},
    "NewTokenView": {"token_id": "id"},
    "SecretView": {"project": "project", "name": "name"},
}
_PAGE = "Page_"  # FastAPI's name of Page[JobView] is Page_JobView_
_CURSOR = "cursor"

Document = dict[str, Any]


def add_links(document: Document) -> None:
    """Add the links to the document, in place."""
    targets = list(_operations(document))
    for path, operation in targets:
        for status, answer in operation["responses"].items():
            view = _view_of(answer) if status.startswith("2") else None
            links = {} if view is None else {**_to_next_page(view, path, operation), **_to_operations(view, targets)}
            if links:
                answer["links"] = links


def _operations(document: Document) -> Iterator[tuple[str, Document]]:
    for path, operations in document["paths"].items():
        for operation in operations.values():
            yield path, operation


def _view_of(answer: Document) -> str | None:
    """Return the name of the answer's schema."""
    schema = answer.get("content", {}).get("application/json", {}).get("schema", {})
    reference = str(schema.get("$ref", ""))
    return reference.rpartition("/")[2] or None


def _to_operations(view: str, targets: list[tuple[str, Document]]) -> Document:
    """Links to every operation whose path parameters are exactly those that the view has."""
    item = view.removeprefix(_PAGE).removesuffix("_") if view.startswith(_PAGE) else None
    gives = _GIVES.get(item or view)
    if gives is None:
        return {}
    place = "$response.body#/" if item is None else "$response.body#/items/0/"
    parameters = {name: f"{place}{field}" for name, field in gives.items()}
    return {
        operation["operationId"]: {"operationId": operation["operationId"], "parameters": parameters}
        for path, operation in targets
        if {part[1:-1] for part in path.split("/") if part.startswith("{")} == set(parameters)
    }


def _to_next_page(view: str, path: str, operation: Document) -> Document:
    names = {parameter["name"] for parameter in operation.get("parameters", ())}
    if not view.startswith(_PAGE) or _CURSOR not in names:
        return {}
    kept = {part[1:-1]: f"$request.path.{part[1:-1]}" for part in path.split("/") if part.startswith("{")}
    parameters = {**kept, _CURSOR: "$response.body#/next_cursor"}
    return {"next_page": {"operationId": operation["operationId"], "parameters": parameters}}
