"""Generate docs from the code.

    python -m deploy.dev.reference [--check]

It writes docs/reference/ (command line, settings, Python client, REST) and the marked sections of docs/concepts.md
(state machines, policy). --check writes nothing and exits with 1 if a page is out of date.
"""

from __future__ import annotations

import ast
import importlib
import inspect
import re
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path
from types import ModuleType
from typing import Any, get_args, get_type_hints

import typer
from pydantic import BaseModel
from pydantic_core import PydanticUndefined
from typer.models import ArgumentInfo, OptionInfo

from deploy.dev import diagrams
from deploy.dev.diagrams import read_comments
from deploy.dev.rest_page import render_rest_body
from deploy.dev.sections import replace_section
from orchestrator import client_settings, cluster_settings, settings
from orchestrator.cli.main import COMMANDS
from orchestrator.client import Client, connect

FOLDER = Path(__file__).parents[2] / "docs" / "reference"
CONCEPTS = FOLDER.parent / "concepts.md"
_MADE = "Generated from the code by `python -m deploy.dev.reference`. Do not edit."


def render_cli() -> str:
    lines = ["# The command line", "", _MADE, "", "    orchestrator [--profile NAME] COMMAND ...", ""]
    lines += [
        "`--json` prints JSON; an error is then JSON on standard error. `--help` explains a command. Exit status: 0",
        "succeeded, 1 the job failed, 2 wrong usage or refused, 3 the service is not reachable, 130 interrupted.",
        "`orchestrator --install-completion` installs completion for your shell.",
    ]
    for name, (module, _) in COMMANDS.items():
        command = getattr(importlib.import_module(module), name)
        if isinstance(command, typer.Typer):
            own = command.registered_callback
            if own is not None and own.callback is not None:
                lines += _command(f"orchestrator {name}", own.callback)
            for below in command.registered_commands:
                assert below.callback is not None
                lines += _command(f"orchestrator {name} {below.name or below.callback.__name__}", below.callback)
        else:
            lines += _command(f"orchestrator {name}", command)
    return "\n".join(lines) + "\n"


def _command(title: str, function: Callable[..., object]) -> Iterator[str]:
    """Render the section of a command from its function's signature, as Typer reads it."""
    parameters = list(_parameters(function))
    arguments = [row for row in parameters if isinstance(row.info, ArgumentInfo)]
    words = " ".join(row.shown if row.default is inspect.Parameter.empty else f"[{row.shown}]" for row in arguments)
    yield from ("", f"## {title}", "", f"    {title} {words}".rstrip(), "", inspect.getdoc(function) or "")
    if parameters:
        yield from ("", "| | default | |", "|---|---|---|")
        yield from (_row(f"`{row.shown}`", _default(row.default), row.info.help) for row in parameters)


@dataclass(frozen=True)
class _Parameter:
    shown: str
    default: object
    info: ArgumentInfo | OptionInfo


def _parameters(function: Callable[..., object]) -> Iterator[_Parameter]:
    hints = get_type_hints(function, include_extras=True)
    for name, parameter in inspect.signature(function).parameters.items():
        if hints[name] is typer.Context:
            continue
        kind, *extras = get_args(hints[name])
        info = next(extra for extra in extras if isinstance(extra, (ArgumentInfo, OptionInfo)))
        if isinstance(info, ArgumentInfo):
            shown = info.metavar or name.upper()
        else:
            # In an Annotated, `default` holds the first flag.
            first = [info.default] if isinstance(info.default, str) and info.default.startswith("-") else []
            flags = ", ".join([*first, *(info.param_decls or ())] or [f"--{name.replace('_', '-')}"])
            shown = flags if kind is bool else f"{flags} {info.metavar or _word(kind)}"
        yield _Parameter(shown, parameter.default, info)


def _word(kind: object) -> str:
    """Return the placeholder for a value of this type, such as NUMBER."""
    known = [part for part in (get_args(kind) or (kind,)) if part is not type(None)]
    names = {int: "NUMBER", float: "NUMBER", Path: "FILE"}
    first = known[0]
    if isinstance(first, str):  # of a Literal
        return "|".join(str(each) for each in known)
    if isinstance(first, type) and issubclass(first, StrEnum):
        return "|".join(first)
    return names.get(first, "TEXT") if isinstance(first, type) else "TEXT"


def _default(value: object) -> str:
    return "" if value in (None, False, inspect.Parameter.empty) else f"`{value}`"


def _row(*cells: str | None) -> str:
    return "| " + " | ".join((cell or "").replace("|", "\\|") for cell in cells) + " |"


def render_settings() -> str:
    lines = ["# Settings", "", _MADE, ""]
    lines += [
        "The service reads its settings from the environment and from `orchestrator.toml`. The environment wins.",
        "`--config` or `ORCHESTRATOR_CONFIG` names another file. Times are in seconds. The tables of the file have the",
        "fields below. A table `[clusters.<name>]` has the fields of its backend.",
        "",
        "| variable | in the file | default | |",
        "|---|---|---|---|",
    ]
    own = _fields(client_settings.ClientSettings, client_settings) | _fields(settings.Settings, settings)
    for name, (default, comment) in own.items():
        lines.append(_row(f"`ORCHESTRATOR_{name.upper()}`", f"`{name}`", default, comment))
    for model, module in _tables():
        lines += ["", f"## {model.__name__}", "", inspect.getdoc(model) or "", ""]
        lines += ["| | default | |", "|---|---|---|"]
        lines += [_row(f"`{name}`", default, comment) for name, (default, comment) in _fields(model, module).items()]
    return "\n".join(lines) + "\n"


def _tables() -> Iterator[tuple[type[BaseModel], ModuleType]]:
    """Yield the models of the file's tables in order, each with its module."""
    for module in (settings, cluster_settings):
        for node in _parse(module).body:
            if isinstance(node, ast.ClassDef) and node.name != "Settings" and node.name.endswith("Settings"):
                yield getattr(module, node.name), module


def _fields(model: type[BaseModel], module: ModuleType) -> dict[str, tuple[str, str]]:
    """Return the default and the comment of each field. The comment follows the field's declaration."""
    comments, declared = read_comments(module), model.model_fields
    (node,) = (node for node in _parse(module).body if isinstance(node, ast.ClassDef) and node.name == model.__name__)
    return {
        line.target.id: (_default_of(declared[line.target.id], line), comments.get(line.end_lineno or 0, ""))
        for line in node.body
        if isinstance(line, ast.AnnAssign) and isinstance(line.target, ast.Name) and line.target.id in declared
    }


def _default_of(field: Any, line: ast.AnnAssign) -> str:
    if field.default_factory is not None:
        return "depends on the machine" if isinstance(line.value, ast.Call) else ""
    if field.default is PydanticUndefined:
        return "required"
    is_table = isinstance(field.default, BaseModel)
    return "" if is_table or field.default in (None, (), {}, "") else f"`{field.default}`"


def _parse(module: ModuleType) -> ast.Module:
    return ast.parse(inspect.getsource(module))


def render_client() -> str:
    lines = ["# The Python client", "", _MADE, "", "By example: [client.md](../client.md).", ""]
    lines += ["`orchestrator.client`", "", *_entry("connect", connect), "", "## Client", ""]
    lines += [inspect.getdoc(Client) or ""]
    for name, method in (pair for part in Client.__mro__ for pair in vars(part).items()):
        if not name.startswith("_") and inspect.isfunction(method):
            lines += ["", *_entry(name, method)]
    return "\n".join(lines) + "\n"


def _entry(name: str, function: Any) -> list[str]:
    signature = str(inspect.signature(function)).replace("(self, ", "(").replace("(self)", "()").replace("'", "")
    signature = re.sub(r"\bwire\.\w+\.", "", signature)
    return [f"### {name}", "", f"    {name}{signature}", "", inspect.getdoc(function) or ""]


def render_rest() -> str:
    head = ["# The REST interface", "", _MADE, "", "By example: [api.md](../api.md).", ""]
    return "\n".join([*head, *render_rest_body()]) + "\n"


PAGES = {"cli.md": render_cli, "settings.md": render_settings, "client.md": render_client, "rest.md": render_rest}
SECTIONS = {
    "job-states": diagrams.render_job_states,
    "attempt-states": diagrams.render_attempt_states,
    "policy": diagrams.render_policy,
}


def render_concepts() -> str:
    """Render the page with its generated sections updated."""
    page = CONCEPTS.read_text()
    for name, render in SECTIONS.items():
        page = replace_section(page, name, render())
    return page


def main() -> int:
    check = "--check" in sys.argv[1:]
    stale = []
    for file, render in {
        **{FOLDER / name: render for name, render in PAGES.items()},
        CONCEPTS: render_concepts,
    }.items():
        text = "\n".join(line.rstrip() for line in render().splitlines()) + "\n"
        if file.exists() and file.read_text() == text:
            continue
        stale.append(file.name)
        if not check:
            FOLDER.mkdir(parents=True, exist_ok=True)
            file.write_text(text)
    if check and stale:
        print(f"docs: {', '.join(stale)} out of date; run python -m deploy.dev.reference")
    return 1 if check and stale else 0


if __name__ == "__main__":
    sys.exit(main())
