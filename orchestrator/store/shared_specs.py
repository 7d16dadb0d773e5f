"""Parse many specs into little memory: the specs of most jobs differ only in the name and a few settings."""

from __future__ import annotations

import json
from collections.abc import Collection, Iterable, Mapping
from hashlib import blake2b
from typing import Any
from weakref import WeakValueDictionary

import structlog
from pydantic import BaseModel, ValidationError
from sqlalchemy import bindparam, select
from sqlalchemy.orm import Session

from orchestrator.domain.specs.spec import JobSpec
from orchestrator.store.tables import JobRow

log = structlog.get_logger()

_PARTS: Mapping[str, type[BaseModel]] = {
    name: field.annotation
    for name, field in JobSpec.model_fields.items()
    if isinstance(field.annotation, type) and issubclass(field.annotation, BaseModel)
}
# Built once, because building an expression costs more than running it.
_STORED = select(JobRow.id, JobRow.spec).where(JobRow.id.in_(bindparam("ids", expanding=True)))


class SharedSpecs:
    """Parsed specs that share equal parts, which are frozen. Forgets specs that nobody else holds. Thread-safe.

    Jobs whose specs differ only in the name share one spec, with the name of any of them.
    """

    def __init__(self) -> None:
        self._known: WeakValueDictionary[bytes, BaseModel] = WeakValueDictionary()  # specs and parts, by content
        self._of_jobs: WeakValueDictionary[tuple[str, int], JobSpec] = WeakValueDictionary()  # by id and request number

    def read(self, session: Session, jobs: Collection[Any]) -> Mapping[str, JobSpec]:
        """Return the specs of these jobs by id. Reads only those that nobody holds or that have changed.

        A spec may have another job's name, which `named` corrects. One that this version cannot parse is logged and
        left out.
        """
        keys = {job.id: (job.id, job.desired_number) for job in jobs}
        found = {job_id: self._of_jobs.get(key) for job_id, key in keys.items()}
        unknown = [job_id for job_id, spec in found.items() if spec is None]
        rows: Iterable[Any] = session.execute(_STORED, {"ids": unknown}) if unknown else ()
        for job_id, document in rows:
            try:
                found[job_id] = self._of_jobs[keys[job_id]] = self.parse(document)
            except ValidationError as error:
                log.error("job is left out: its spec cannot be parsed", job=job_id, reason=str(error))
        return {job_id: spec for job_id, spec in found.items() if spec is not None}

    def parse(self, document: Mapping[str, object]) -> JobSpec:
        """Return the shared spec. Raises ValidationError."""
        key = _digest("", {**document, "name": None})
        known = self._known.get(key)
        if isinstance(known, JobSpec):
            return known
        parts = {name: self._parse_part(name, document[name]) for name in _PARTS.keys() & document.keys()}
        self._known[key] = spec = JobSpec.model_validate({**document, **parts})
        return spec

    def _parse_part(self, name: str, document: object) -> BaseModel:
        key = _digest(name, document)
        part = self._known.get(key)
        if part is None:
            part = self._known[key] = _PARTS[name].model_validate(document)
        return part


def named(shared: JobSpec, name: str) -> JobSpec:
    """Return the spec of the job with this name. It takes 500 bytes, so thousands of them should not be kept."""
    if shared.name == name:
        return shared
    spec = shared.model_copy(update={"name": name})
    object.__setattr__(spec, "__pydantic_fields_set__", shared.model_fields_set)  # a copy would take 800 bytes more
    return spec


def _digest(name: str, document: object) -> bytes:
    return blake2b(
        f"{name} {json.dumps(document, sort_keys=True)}".encode(errors="surrogatepass"), digest_size=16
    ).digest()
