"""Read a job's file: YAML or JSON, from a path or standard input. The service validates the fields.

YAML is read by its 1.2 core schema: `nodes: 2:8` is a text and not 128, `1e-3` is a number, `on` is a text.
"""

from __future__ import annotations

import json
import re
import sys
from collections.abc import Hashable, Sequence
from pathlib import Path

import yaml

from orchestrator.core_schema import use_core_schema
from orchestrator.domain.errors import InvalidSpec, Refused
from orchestrator.domain.specs.spec import MAX_SPEC_BYTES
from orchestrator.domain.specs.validation import check_plain

_TEXTS = ("run.env.", "labels.")  # fields whose values are texts: `--set run.env.N=1` needs no quotes
_ARGUMENTS = ("run.args", "run.command", "run.env")
_STRING = "tag:yaml.org,2002:str"
_EXAMPLE = "such as `name: my-job` and below it `run: {script: train.py}`"


def read_spec(source: str, changes: Sequence[str] = ()) -> dict[str, object]:
    """Read the document of the file `source` ("-" is standard input) and apply `changes` ("key.path=value").

    Makes `run.workdir` absolute, from the current folder. Raises Refused, InvalidSpec.
    """
    if source.endswith(".py"):
        raise Refused(f"{source} is a Python file; run it with: orchestrator run {source}")
    document = _parse(_read(source), source)
    if document is None:
        raise Refused(f"{source} is empty; a job's file contains a mapping, {_EXAMPLE}")
    if not isinstance(document, dict):
        raise Refused(f"{source} contains {_kind(document)}, must contain a mapping, {_EXAMPLE}")
    apply_changes(document, changes)
    _make_workdir_absolute(document)
    return document


def read_patch(source: str | None, changes: Sequence[str] = ()) -> dict[str, object] | None:
    """Read a patch of a job's spec (RFC 7396) from a file and `changes`. None without either.

    Raises Refused, InvalidSpec.
    """
    document = None if source is None else _parse(_read(source), source)
    if document is not None and not isinstance(document, dict):
        raise Refused(f"{source} contains {_kind(document)}, must contain a mapping, {_EXAMPLE}")
    patch: dict[str, object] = document or {}
    apply_changes(patch, changes)
    run = patch.get("run")
    if isinstance(run, dict) and isinstance(run.get("workdir"), str):
        _make_workdir_absolute(patch)
    return patch or None


def apply_changes(document: dict[str, object], changes: Sequence[str]) -> None:
    """Set fields, each written as "key.path=value". Raises Refused, InvalidSpec."""
    for change in changes:
        _apply(document, change)
    problems = check_plain(document)
    if problems:
        raise InvalidSpec(problems)


def _read(source: str) -> str:
    try:
        if source == "-":
            content = sys.stdin.buffer.read(MAX_SPEC_BYTES + 1)
        else:
            with Path(source).open("rb") as file:
                content = file.read(MAX_SPEC_BYTES + 1)
    except OSError as error:
        raise Refused(f"cannot read {source}: {error.strerror or error}") from error
    if len(content) > MAX_SPEC_BYTES:
        raise Refused(f"{source} is larger than {MAX_SPEC_BYTES} bytes: is it a job's file?")
    try:
        return content.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        raise Refused(f"{source} is not UTF-8 text (byte {error.start}): is it a job's file?") from error


def _parse(text: str, source: str, path: str = "") -> object:
    if text.lstrip().startswith("{"):
        try:
            return json.loads(text)
        except ValueError:
            pass  # may still be YAML's flow style
    try:
        return _load(text, path)
    except yaml.MarkedYAMLError as error:
        mark = error.problem_mark or error.context_mark
        where = f" line {mark.line + 1}, column {mark.column + 1}" if mark else ""
        raise Refused(f"{source}{where}: {error.problem or error.context}") from error
    except (yaml.YAMLError, ValueError) as error:
        raise Refused(f"{source}: {' '.join(str(error).split())}") from error
    except RecursionError as error:
        raise Refused(f"{source} is nested too deeply") from error


class _Loader(yaml.SafeLoader):
    """SafeLoader with the core schema and merge keys. Refuses duplicate keys."""

    def construct_mapping(self, node: yaml.MappingNode, deep: bool = False) -> dict[Hashable, object]:
        seen: set[str] = set()
        for key, _ in node.value:
            if isinstance(key, yaml.ScalarNode) and key.value in seen:
                raise yaml.constructor.ConstructorError(
                    None, None, f"the key {key.value!r} appears twice", key.start_mark
                )
            seen.add(str(key.value))
        return super().construct_mapping(node, deep)


def _load(text: str, path: str) -> object:
    """Load a document, or the value of the field at a path. Raises yaml.YAMLError."""
    loader = _Loader(text)
    try:
        node = loader.get_single_node()
        if node is None:
            return None
        _keep_as_written(node, path)
        return loader.construct_document(node)
    finally:
        loader.dispose()


def _keep_as_written(node: yaml.Node, path: str) -> None:
    """Make the numbers in arguments and variables texts: 1e5 and 010 must reach the script so."""
    if isinstance(node, yaml.SequenceNode) and path in _ARGUMENTS:
        node.value = [_as_text(value) for value in node.value]
    elif isinstance(node, yaml.MappingNode) and path in _ARGUMENTS:
        node.value = [(key, _as_text(value)) for key, value in node.value]
    elif isinstance(node, yaml.MappingNode) and path in ("", "run", "sweep"):
        for key, value in node.value:
            _keep_as_written(value, f"{path}.{key.value}".removeprefix("."))
    elif path.startswith("sweep."):
        _keep_swept(node)


def _keep_swept(node: yaml.Node) -> None:
    """Do the same below the keys of a sweep that are arguments or variables."""
    if isinstance(node, yaml.SequenceNode):
        for each in node.value:
            _keep_swept(each)
    elif isinstance(node, yaml.MappingNode):
        node.value = [
            (key, _as_texts(value) if key.value.startswith(("-", "run.env.")) else value) for key, value in node.value
        ]


def _as_texts(node: yaml.Node) -> yaml.Node:
    """Copy a number, or a list of numbers and lists, as texts."""
    if isinstance(node, yaml.SequenceNode):
        return yaml.SequenceNode(node.tag, [_as_texts(each) for each in node.value])
    return _as_text(node)


def _as_text(node: yaml.Node) -> yaml.Node:
    """Copy a number as a text. The node itself may be the anchor of a number elsewhere."""
    return yaml.ScalarNode(_STRING, node.value) if node.tag.endswith((":int", ":float")) else node


use_core_schema(_Loader)
_Loader.add_implicit_resolver("tag:yaml.org,2002:merge", re.compile("^<<$"), ["<"])


def _apply(document: dict[str, object], change: str) -> None:
    path, equals, text = change.partition("=")
    *parents, last = path.split(".")
    if not equals or not all((*parents, last)):
        raise Refused(f"--set {change}: must be like run.trainer.steps=20")
    place = document
    for parent in parents:
        below = place.setdefault(parent, {})
        if not isinstance(below, dict):
            raise Refused(f"--set {change}: {parent} is {_kind(below)} and has no fields")
        place = below
    place[last] = text if path.startswith(_TEXTS) else _parse(text, f"--set {change}", path)


def _kind(value: object) -> str:
    names = {
        str: "a text",
        bool: "a boolean",
        int: "a number",
        float: "a number",
        list: "a list",
        dict: "a mapping",
    }
    return "nothing" if value is None else names.get(type(value), f"a {type(value).__name__}")


def _make_workdir_absolute(document: dict[str, object]) -> None:
    run = document.get("run")
    if isinstance(run, dict) and isinstance(run.get("workdir", "."), str):
        document["run"] = {**run, "workdir": str(Path.cwd() / run.get("workdir", "."))}
