"""Show a stored spec without parsing it into models, which would cost ten times as much.

A spec was validated when it was stored. It may lack fields that later versions have added. These get their defaults.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import lru_cache

from pydantic_core import from_json

from orchestrator.domain.specs.spec import JobSpec

Document = dict[str, object]
_MAX_CHARS = 16 * 1024  # of a text that is remembered; most have a few thousand


@dataclass(frozen=True, slots=True)
class _Section:
    """The fields of one model, in order, with their defaults. The default of a field in `sections` is not used."""

    names: tuple[str, ...]
    defaults: Document
    sections: Mapping[str, _Section]
    numbers: tuple[str, ...]  # fields that default to a float; older versions stored some of these as integers


def show_stored_spec(text: str) -> Mapping[str, object]:
    """Return the document that parsing the stored JSON and rendering the model would give. Do not change it.

    Leaves out fields that this version does not know. Shows the defaults for a damaged text or section.
    """
    return _remember(text) if len(text) <= _MAX_CHARS else _show(text)


@lru_cache(maxsize=100)
def _remember(text: str) -> Document:
    """Lists are polled, so the same specs are shown again and again."""
    return _show(text)


def _show(text: str) -> Document:
    try:
        stored = from_json(text)
    except ValueError:
        stored = None
    return _complete(stored, _SPEC)


def _complete(stored: object, section: _Section) -> Document:
    found: Document = stored if isinstance(stored, dict) else {}
    if tuple(found) != section.names:
        found = {name: found.get(name, default) for name, default in section.defaults.items()}
    for name in section.numbers:
        found[name] = _as_float(found[name])
    for name, inner in section.sections.items():
        found[name] = _complete(found[name], inner)
    return found


def _as_float(value: object) -> object:
    if isinstance(value, list):
        return [_as_float(each) for each in value]
    return float(value) if type(value) is int else value


def _build(defaults: Document) -> _Section:
    sections = {name: _build(inner) for name, inner in defaults.items() if isinstance(inner, dict) and inner}
    return _Section(
        names=tuple(defaults),
        defaults={**defaults, **dict.fromkeys(sections)},
        sections=sections,
        numbers=tuple(name for name, default in defaults.items() if _is_numeric(default)),
    )


def _is_numeric(default: object) -> bool:
    return isinstance(default[0] if isinstance(default, list) and default else default, float)


def _render(spec: JobSpec) -> Document:
    return spec.model_dump(mode="json", by_alias=True)


def _find_defaults() -> Document:
    """Return the default of each field, also of those in sections, as validation renders it."""
    smallest = _render(JobSpec.model_validate({"name": "x", "run": {"command": ["x"]}}))
    defaults = _render(JobSpec.model_validate(smallest))
    run = defaults["run"]
    assert isinstance(run, dict)
    return {**defaults, "name": None, "run": {**run, "command": None}}


_SPEC = _build(_find_defaults())
