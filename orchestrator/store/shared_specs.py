"""Parse many specs into little memory: most jobs of a cluster differ only in a name and a few settings."""

from __future__ import annotations

import json
from collections.abc import Mapping
from weakref import WeakValueDictionary

from pydantic import BaseModel

from orchestrator.domain.specs.spec import JobSpec

_PARTS: Mapping[str, type[BaseModel]] = {
    name: field.annotation
    for name, field in JobSpec.model_fields.items()
    if isinstance(field.annotation, type) and issubclass(field.annotation, BaseModel)
}


class SharedSpecs:
    """Parses specs whose equal parts are one object, as long as a spec has the part. Parts are frozen."""

    def __init__(self) -> None:
        self._known: WeakValueDictionary[tuple[str, str], BaseModel] = WeakValueDictionary()

    def parse(self, document: Mapping[str, object]) -> JobSpec:
        """Raises ValidationError."""
        parts = {name: self._parse_part(name, document[name]) for name in _PARTS.keys() & document.keys()}
        return JobSpec.model_validate({**document, **parts})

    def _parse_part(self, name: str, document: object) -> BaseModel:
        key = (name, json.dumps(document, sort_keys=True))
        part = self._known.get(key)
        if part is None:
            part = self._known[key] = _PARTS[name].model_validate(document)
        return part
