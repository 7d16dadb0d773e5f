"""Every place of a job spec that takes text, found in its JSON schema, so that new fields are tested too."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from orchestrator.domain.errors import InvalidSpec
from orchestrator.domain.specs.spec import JobSpec
from orchestrator.domain.specs.validation import parse_spec
from trainer.contract.config import TrainerConfig

ITEM, VALUE, KEY = "[]", "{value}", "{key}"

# Each would run `touch canary` somewhere if it were interpreted as shell, YAML or an option.
SHELL = (
    "$(touch canary)",
    "`touch canary`",
    "; touch canary #",
    "\ntouch canary\n",
    "' ; touch canary '",
    '" ; touch canary "',
    "&& touch canary",
    "| touch canary",
    "$'\\n'touch canary",
    "${IFS}touch canary",
    "x\nEND_OF_SCRIPT\ntouch canary\n",
    "#SBATCH --wrap='touch canary'",
    "\n#!/bin/sh\ntouch canary",
    "\\'; touch canary; \\'",
    "--wrap=touch canary",
    "<(touch canary)",
    "x\n---\nkind: Pod\nmetadata: {name: canary}\n",
    "$(HOME)",
    "{{ canary }}",
    "\r\ntouch canary\r\n",
    "~",
    "*",
    "-",
)

_BASES: tuple[dict[str, Any], ...] = tuple(
    {"name": "demo", "run": run, "launcher": launcher}
    for launcher in ("elasticrun", "torchrun")
    for run in ({"command": ["true"]}, {"script": "train.py"}, {"module": "train"}, {"trainer": {}})
)


@dataclass(frozen=True, slots=True)
class Place:
    """`steps` lead from the document to the text: names, or ITEM, VALUE or KEY in a list or an object."""

    steps: tuple[str, ...]

    def __str__(self) -> str:
        return ".".join(self.steps)


def find_places() -> list[Place]:
    """All places. The schema leaves the bundled trainer open, so its places come from its configuration class."""
    schema = JobSpec.model_json_schema()
    found = [Place(steps) for steps in _texts(schema, schema["$defs"], ())]
    own = [Place(("run", "trainer", field.name)) for field in dataclasses.fields(TrainerConfig)]
    return list(dict.fromkeys([*found, *own]))


def accepted(place: Place, text: str) -> list[JobSpec]:
    """Accepted specs with this text at this place, at most one for each launcher."""
    by_launcher: dict[str, JobSpec] = {}
    for base in _BASES:
        if base["launcher"] in by_launcher:
            continue
        try:
            by_launcher[base["launcher"]] = parse_spec(_merged(base, _planted(place.steps, text)))
        except InvalidSpec:
            continue
    return list(by_launcher.values())


def _texts(schema: Mapping[str, Any], known: Mapping[str, Any], steps: tuple[str, ...]) -> Iterator[tuple[str, ...]]:
    if "$ref" in schema:
        schema = known[schema["$ref"].rpartition("/")[2]]
    for choice in schema.get("anyOf", ()):
        yield from _texts(choice, known, steps)
    for name, below in schema.get("properties", {}).items():
        yield from _texts(below, known, (*steps, name))
    for below in schema.get("prefixItems", [schema["items"]] if "items" in schema else []):
        yield from _texts(below, known, (*steps, ITEM))
    values = schema.get("additionalProperties", schema.get("type") == "object" and "properties" not in schema)
    if values:
        yield (*steps, KEY)
        yield from [(*steps, VALUE)] if values is True else _texts(values, known, (*steps, VALUE))
    if "patternProperties" in schema:
        yield (*steps, KEY)
        for below in schema["patternProperties"].values():
            yield from _texts(below, known, (*steps, VALUE))
    if schema.get("type") == "string" or (not schema.keys() & {"type", "anyOf", "properties", "const", "enum"}):
        yield steps


def _planted(steps: tuple[str, ...], text: str) -> Any:
    value: Any = text
    for step in reversed(steps):
        if step == KEY:
            value = {text: "x"}
        elif step == VALUE:
            value = {"a": value}
        else:
            value = [value] if step == ITEM else {step: value}
    return value


def _merged(base: Any, more: Any) -> Any:
    if not isinstance(base, dict) or not isinstance(more, dict):
        return more
    return {**base, **{name: _merged(base.get(name), value) for name, value in more.items()}}
