"""A sweep: one document that makes many jobs, its members. Pure.

    sweep:
      product: {--lr: [1e-3, 3e-4], run.env.SEED: [1, 2]}   # every combination: 4 jobs
      at_once: 2                                            # how many of them may run at a time

`zip` takes the first values together, then the second ones. `list` names the values of each member. A key is an
argument of the program, such as `--lr`, or the path of a field.
"""

from __future__ import annotations

import itertools
import json
from collections.abc import Iterator, Mapping, Sequence
from typing import Annotated, Self

from pydantic import BaseModel, ConfigDict, Field, model_validator

from orchestrator.domain.errors import FieldProblem, InvalidSpec
from orchestrator.domain.field_rules import SWEEP_KEY
from orchestrator.domain.specs.spec import ARRAY_LABEL, ArrayPlace, Count, JobSpec, add_suffix
from orchestrator.domain.specs.validation import merge_patch, parse_model, parse_spec

MOST_MEMBERS = 500
MOST_BYTES = 16 * 1024 * 1024  # of all specs as JSON, without what the sweep adds
_FIXED = ("name", "project", "cluster", "array", "labels")  # equal in all members
_LONGEST = 200  # characters of a value that are shown

Key = Annotated[str, Field(pattern=SWEEP_KEY)]
Values = Annotated[list[object], Field(min_length=1, max_length=MOST_MEMBERS)]
Choice = dict[str, object]


class Sweep(BaseModel):
    """How the members differ: exactly one of product, zip and list."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    product: Annotated[dict[Key, Values], Field(min_length=1, max_length=20)] | None = None
    zip: Annotated[dict[Key, Values], Field(min_length=1, max_length=20)] | None = None
    listed: Annotated[list[dict[Key, object]] | None, Field(alias="list", min_length=1, max_length=MOST_MEMBERS)] = None
    at_once: Count | None = None

    @model_validator(mode="after")
    def _one_way(self) -> Self:
        ways = {"product": self.product, "zip": self.zip, "list": self.listed}
        given = [name for name, way in ways.items() if way is not None]
        if len(given) != 1:
            found = " and ".join(given) if given else "none of them"
            raise ValueError(f"needs exactly one of product, zip and list; found {found}")
        lengths = {len(values) for values in (self.zip or {}).values()}
        if len(lengths) > 1:
            raise ValueError(f"zip needs lists of one length; found {', '.join(map(str, sorted(lengths)))}")
        return self

    def choices(self) -> Iterator[Choice]:
        """Yield the values of each member."""
        if self.listed is not None:
            yield from self.listed
            return
        columns = self.product or self.zip or {}
        rows = itertools.product(*columns.values()) if self.product else zip(*columns.values(), strict=True)
        for row in rows:
            yield dict(zip(columns, row, strict=True))


class ArraySpec(JobSpec):
    """A job's spec with a sweep: the body of a submission of an array."""

    sweep: Sweep

    @model_validator(mode="after")
    def _leaves_the_array_to_the_service(self) -> Self:
        if self.array is not None or ARRAY_LABEL in self.labels:
            raise ValueError(f"array and labels.{ARRAY_LABEL} are set by the service")
        return self


def parse_array(document: object) -> ArraySpec:
    """Raises InvalidSpec."""
    return parse_model(ArraySpec, document)


def is_sweep(document: object) -> bool:
    return isinstance(document, Mapping) and "sweep" in document


def expand(spec: ArraySpec, array_id: str) -> list[JobSpec]:
    """Return the specs of the members, in order. Raises InvalidSpec with the problems of the first wrong one."""
    choices = list(itertools.islice(spec.sweep.choices(), MOST_MEMBERS + 1))
    if len(choices) > MOST_MEMBERS:
        raise InvalidSpec([FieldProblem("/sweep", f"makes more than {MOST_MEMBERS} jobs")])
    common = spec.model_dump(mode="json", by_alias=True, exclude_unset=True, exclude={"sweep"})
    size = len(json.dumps(common))
    if len(choices) * size > MOST_BYTES:
        message = f"makes {len(choices)} jobs of {size} bytes each, more than {MOST_BYTES} bytes in all"
        raise InvalidSpec([FieldProblem("/sweep", message)])
    members = []
    for index, choice in enumerate(choices, start=1):
        values = {key: _shown(value)[:_LONGEST] for key, value in choice.items()}
        place = ArrayPlace(id=array_id, index=index, size=len(choices), at_once=spec.sweep.at_once, values=values)
        own = {
            "name": add_suffix(spec.name, str(index)),
            "labels": {**spec.labels, ARRAY_LABEL: array_id},
            "array": place.model_dump(mode="json"),
        }
        members.append(_member({**common, **own}, choice, index))
    return members


def _member(document: object, choice: Choice, index: int) -> JobSpec:
    arguments: list[str] = []
    for key, value in choice.items():
        if key.startswith("-"):
            arguments += _arguments(key, value)
        elif key.split(".")[0] in _FIXED:
            raise InvalidSpec([FieldProblem(f"/sweep/{key}", "is the same in all members; submit another array")])
        elif key.split(".")[0] not in JobSpec.model_fields:
            raise InvalidSpec(
                [FieldProblem(f"/sweep/{key}", f"is not a field of a job; for an argument write --{key}")]
            )
        else:
            document = merge_patch(document, _patch(key, value))
    try:
        return parse_spec(_with_arguments(document, arguments))
    except InvalidSpec as error:
        named = ", ".join(f"{key}={_shown(value)[:_LONGEST]}" for key, value in choice.items())
        raise InvalidSpec(
            [FieldProblem(each.pointer, f"{each.message} (member {index}: {named})") for each in error.problems]
        ) from error


def _patch(path: str, value: object) -> object:
    for part in reversed(path.split(".")):
        value = {part: value}
    return value


def _arguments(key: str, value: object) -> Iterator[str]:
    """Yield the arguments. True is a flag, false and null are none, and a list gives several values."""
    if value is None or value is False:
        return
    yield key
    if value is not True:
        yield from map(_shown, value if isinstance(value, list) else [value])


def _with_arguments(document: object, arguments: Sequence[str]) -> object:
    run = document.get("run") if isinstance(document, dict) else None
    if not arguments or not isinstance(run, dict):
        return document
    if "trainer" in run:
        problem = f"{arguments[0]} is an argument, and run.trainer has none; use run.trainer.KEY"
        raise InvalidSpec([FieldProblem("/sweep", problem)])
    field = "command" if "command" in run else "args"
    before = run.get(field) or []
    return merge_patch(document, {"run": {field: [*before, *arguments]}}) if isinstance(before, list) else document


def _shown(value: object) -> str:
    return value if isinstance(value, str) else json.dumps(value)
