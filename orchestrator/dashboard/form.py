"""The form of a submission: read the texts of its fields from a spec's document, and write them back. Pure.

The form has the fields that most jobs set. All other fields of the YAML stay untouched.
"""

from __future__ import annotations

import copy
import shlex
from collections.abc import Callable, Mapping
from dataclasses import dataclass

import yaml

KINDS = ("trainer", "script", "module", "command")
FIRST = """\
name: first
run:
  trainer:
    model: gpt
    data: stdlib
    steps: 300
    global_batch: 64
topology:
  nodes: 1
  workers_per_node: 2
"""

Document = dict[str, object]
Fields = Mapping[str, str]
_MOST_DIGITS = 100


@dataclass(frozen=True, slots=True)
class _Field:
    """A field of the form and its path in the document. `kind` limits it to jobs of that kind."""

    path: tuple[str, ...]
    read: Callable[[str], object]
    show: Callable[[object], str]
    kind: str | None = None


def _show_plain(value: object) -> str:
    if value is None or isinstance(value, (dict, list)):
        return ""
    return str(value).lower() if isinstance(value, bool) else str(value)


def _read_number(text: str) -> object:
    """Return a number, or the text itself, which the spec's validation then refuses by name."""
    if len(text) > _MOST_DIGITS:
        return text
    for read in (int, float):
        try:
            return read(text)
        except ValueError:
            continue
    return text


def _read_words(text: str) -> object:
    try:
        return shlex.split(text)
    except ValueError:  # an open quote, while the user types
        return text.split()


def _show_words(value: object) -> str:
    return shlex.join(map(str, value)) if isinstance(value, list) else ""


def _read_pairs(text: str) -> object:
    pairs = (part.partition("=") for part in text.replace("\n", ",").split(",") if part.strip())
    return {key.strip(): value.strip() for key, _, value in pairs}


def _show_pairs(value: object) -> str:
    return ", ".join(f"{key}={text}" for key, text in value.items()) if isinstance(value, dict) else ""


FIELDS: Mapping[str, _Field] = {
    "name": _Field(("name",), str, _show_plain),
    "project": _Field(("project",), str, _show_plain),
    "cluster": _Field(("cluster",), str, _show_plain),
    "model": _Field(("run", "trainer", "model"), str, _show_plain, "trainer"),
    "data": _Field(("run", "trainer", "data"), str, _show_plain, "trainer"),
    "steps": _Field(("run", "trainer", "steps"), _read_number, _show_plain, "trainer"),
    "global_batch": _Field(("run", "trainer", "global_batch"), _read_number, _show_plain, "trainer"),
    "strategy": _Field(("run", "trainer", "strategy"), str, _show_plain, "trainer"),
    "script": _Field(("run", "script"), str, _show_plain, "script"),
    "module": _Field(("run", "module"), str, _show_plain, "module"),
    "command": _Field(("run", "command"), _read_words, _show_words, "command"),
    "args": _Field(("run", "args"), _read_words, _show_words),
    "workdir": _Field(("run", "workdir"), str, _show_plain),
    "nodes": _Field(("topology", "nodes"), str, _show_plain),
    "workers": _Field(("topology", "workers_per_node"), _read_number, _show_plain),
    "cpus": _Field(("resources", "cpus"), _read_number, _show_plain),
    "memory_gb": _Field(("resources", "memory_gb"), _read_number, _show_plain),
    "gpus": _Field(("resources", "gpus"), _read_number, _show_plain),
    "interval": _Field(("snapshot", "interval"), _read_number, _show_plain),
    "keep": _Field(("snapshot", "keep"), _read_number, _show_plain),
    "priority": _Field(("priority",), _read_number, _show_plain),
    "labels": _Field(("labels",), _read_pairs, _show_pairs),
}


def show_fields(document: object) -> dict[str, str]:
    """Return the texts of the form. Empty for fields that the document lacks. `kind` is what the job runs."""
    fields = {name: field.show(_find(document, field.path)) for name, field in FIELDS.items()}
    run = _find(document, ("run",))
    given = [kind for kind in KINDS if isinstance(run, dict) and kind in run]
    return {**fields, "kind": given[0] if given else KINDS[0]}


def merge_fields(document: object, fields: Fields) -> Document:
    """Return the document with the form's fields. An empty field means its default. Everything else stays."""
    merged: Document = copy.deepcopy(document) if isinstance(document, dict) else {}
    kind = fields.get("kind", KINDS[0])
    for name, field in FIELDS.items():
        text = fields.get(name, "").strip()
        if name not in fields and field.kind is None:
            continue
        if not text or field.kind not in (None, kind) or (name == "args" and kind in ("trainer", "command")):
            _remove(merged, field.path)
        elif field.show(_find(merged, field.path)) != text:
            _put(merged, field.path, field.read(text))
    _keep_kind(merged, kind)
    return merged


def render_yaml(document: Document) -> str:
    return yaml.safe_dump(document, sort_keys=False, allow_unicode=True, default_flow_style=False, width=100)


def _keep_kind(document: Document, kind: str) -> None:
    """Leave exactly one kind in `run`. A trainer without settings becomes `{}`, which means its defaults."""
    run = document.get("run")
    if not isinstance(run, dict):
        run = document["run"] = {}
    for other in KINDS:
        if other != kind:
            run.pop(other, None)
    if kind == "trainer" and not isinstance(run.get("trainer"), dict):
        run["trainer"] = {}


def _find(document: object, path: tuple[str, ...]) -> object:
    for name in path:
        if not isinstance(document, dict):
            return None
        document = document.get(name)
    return document


def _put(document: Document, path: tuple[str, ...], value: object) -> None:
    *above, last = path
    for name in above:
        below = document.get(name)
        if not isinstance(below, dict):
            below = document[name] = {}
        document = below
    document[last] = value


def _remove(document: Document, path: tuple[str, ...]) -> None:
    """Remove a value, and mappings that become empty, except `run` and `trainer`."""
    *above, last = path
    parents: list[tuple[Document, str]] = []
    for name in above:
        below = document.get(name)
        if not isinstance(below, dict):
            return
        parents.append((document, name))
        document = below
    document.pop(last, None)
    for parent, name in reversed(parents):
        if parent[name] == {} and name not in ("run", "trainer"):
            del parent[name]
