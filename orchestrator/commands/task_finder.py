"""Look for a task's module in a folder, and for its function in the module's text, without importing either.

`tasks.py` runs this file as a program of its own, because hostile text may take all memory and time of the process that
parses it. Standard library only. It answers nothing where only running the code could tell.
"""

from __future__ import annotations

import ast
import difflib
import importlib.util
import json
import os
import pkgutil
import resource
import sys
from collections.abc import Iterator, Sequence
from importlib.machinery import BuiltinImporter, FrozenImporter, ModuleSpec, PathFinder, SourceFileLoader
from pathlib import Path

_MOST_BYTES = 1_000_000  # of a module's text
_MEMORY_BYTES, _CPU_S = 2 << 30, 5
# A module that uses one of these may define any name at run time.
_DYNAMIC = {"__getattr__", "globals", "locals", "vars", "exec", "eval", "setattr", "modules", "__dict__", "__path__"}


class Undecidable(Exception):
    """Only running the code could tell."""


def why_no_task(folder: str, task: str, *, sees_path: bool) -> str | None:
    """Return what is missing, as a clause. `sees_path`: the job's modules are in `folder` or installed here."""
    name, _, function = task.partition(":")
    parts, places = name.split("."), [folder]
    try:
        for depth, part in enumerate(parts[:-1], start=1):
            package = _find(part, places)
            if package is None:
                return _why_no_module(parts[:depth], places, sees_path=sees_path)
            places = _list_places(package)
        module = _find(parts[-1], places)
        if module is None:
            return _why_no_module(parts, places, sees_path=sees_path)
        return _why_no_function(module, function)
    except (Undecidable, OSError, ValueError, SyntaxError, RecursionError, MemoryError):
        return None


def _find(part: str, places: Sequence[str]) -> ModuleSpec | None:
    if BuiltinImporter.find_spec(part) or FrozenImporter.find_spec(part):
        raise Undecidable
    return PathFinder.find_spec(part, places)


def _list_places(spec: ModuleSpec) -> list[str]:
    """Return where the modules of a package are. Only running a package can change that."""
    if spec.submodule_search_locations is None:
        raise Undecidable
    if spec.loader is not None and _mentioned(_parse(spec)) & _DYNAMIC:
        raise Undecidable
    return list(spec.submodule_search_locations)


def _why_no_module(parts: Sequence[str], places: Sequence[str], *, sees_path: bool) -> str:
    if not sees_path or importlib.util.find_spec(parts[0]) is not None:
        raise Undecidable
    near = _advise(parts[-1], [each.name for each in pkgutil.iter_modules(places)], prefix=parts[:-1])
    return f"there is no module {'.'.join(parts)} in {places[0]}{near}"


def _why_no_function(spec: ModuleSpec, function: str) -> str | None:
    tree = _parse(spec)
    names = set(_list_names(tree.body))
    if function in names or _mentioned(tree) & _DYNAMIC or "*" in names:
        return None
    return f"{spec.origin} has no function {function}{_advise(function, sorted(names))}"


def _advise(name: str, known: Sequence[str], *, prefix: Sequence[str] = ()) -> str:
    near = difflib.get_close_matches(name, known, n=1)
    return f"; did you mean {'.'.join([*prefix, near[0]])}?" if near else ""


def _parse(spec: ModuleSpec) -> ast.Module:
    if not isinstance(spec.loader, SourceFileLoader) or spec.origin is None:
        raise Undecidable
    path = Path(spec.origin)
    if not path.is_file() or path.stat().st_size > _MOST_BYTES:
        raise Undecidable
    return ast.parse(path.read_bytes())


def _mentioned(tree: ast.Module) -> set[str]:
    """Return every name and attribute anywhere in a module, and the names of its functions."""
    found = set()
    for node in ast.walk(tree):
        match node:
            case ast.Name(id=name) | ast.Attribute(attr=name) | ast.FunctionDef(name=name):
                found.add(name)
    return found


def _list_names(body: Sequence[ast.AST]) -> Iterator[str]:
    """Yield the names that a module binds, also inside of its compound statements, and "*" for a star import."""
    for node in body:
        match node:
            case ast.FunctionDef(name=name) | ast.AsyncFunctionDef(name=name) | ast.ClassDef(name=name):
                yield name
                yield from _list_globals(node)
                continue
            case ast.Import(names=names) | ast.ImportFrom(names=names):
                yield from (each.asname or each.name.partition(".")[0] for each in names)
            case ast.Name(id=name, ctx=ast.Store()):
                yield name
            case ast.MatchAs(name=str(name)) | ast.MatchStar(name=str(name)) | ast.ExceptHandler(name=str(name)):
                yield name
        yield from _list_names(list(ast.iter_child_nodes(node)))


def _list_globals(node: ast.AST) -> Iterator[str]:
    for each in ast.walk(node):
        if isinstance(each, ast.Global):
            yield from each.names


def main() -> None:
    """Read {folder, task, sees_path} as JSON and print the answer as JSON."""
    resource.setrlimit(resource.RLIMIT_AS, (_MEMORY_BYTES, _MEMORY_BYTES))
    resource.setrlimit(resource.RLIMIT_CPU, (_CPU_S, _CPU_S))
    given = json.load(sys.stdin)
    sees_path = given["sees_path"] and not os.environ.get("PYTHONPATH")
    print(json.dumps(why_no_task(given["folder"], given["task"], sees_path=sees_path)))


if __name__ == "__main__":
    main()
