"""What differs between the specs of several jobs. Pure."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence

from orchestrator.domain.specs.spec import ARRAY_LABEL, JobSpec

_OWN = ("name", "array", f"labels.{ARRAY_LABEL}")  # different in every job
_LONGEST = 200  # characters of a value
_ABSENT = "–"


def list_differences(specs: Sequence[JobSpec]) -> dict[str, list[str]]:
    """Return the fields that are not equal in all specs: by path, the value of each spec as text.

    Members of one array differ by what their sweep chose.
    """
    arrays = {None if spec.array is None else spec.array.id for spec in specs}
    chosen = [spec.array.values for spec in specs if spec.array is not None]
    rows: Sequence[Mapping[str, str]] = (
        chosen if len(arrays) == 1 and chosen else [dict(_leaves(spec)) for spec in specs]
    )
    paths = dict.fromkeys(path for row in rows for path in row)
    found = {path: [row.get(path, _ABSENT) for row in rows] for path in paths}
    return {path: values for path, values in found.items() if len(set(values)) > 1}


def _leaves(spec: JobSpec) -> Iterator[tuple[str, str]]:
    for path, value in _walk(spec.model_dump(mode="json", by_alias=True), ""):
        if path not in _OWN and not path.startswith("array."):
            yield path, (value if isinstance(value, str) else json.dumps(value))[:_LONGEST]


def _walk(document: object, path: str) -> Iterator[tuple[str, object]]:
    if isinstance(document, Mapping):
        for key, value in document.items():
            yield from _walk(value, f"{path}.{key}".removeprefix("."))
    else:
        yield path, document
