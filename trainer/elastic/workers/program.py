"""A worker's program: what its command runs, and running that inside a process which has imported torch already."""

from __future__ import annotations

import runpy
import shutil
import sys
from collections.abc import Collection, Sequence
from dataclasses import dataclass
from importlib.machinery import (
    BYTECODE_SUFFIXES,
    EXTENSION_SUFFIXES,
    SOURCE_SUFFIXES,
    BuiltinImporter,
    ExtensionFileLoader,
    FileFinder,
    FrozenImporter,
    SourceFileLoader,
    SourcelessFileLoader,
)
from pathlib import Path
from types import ModuleType

OURS = "trainer"  # this package, which may be preloaded; a user's own of that name must win all the same
_HARMLESS_FLAGS = ("-u",)  # a worker's output is never held back
_LOADERS = (
    (ExtensionFileLoader, EXTENSION_SUFFIXES),
    (SourceFileLoader, SOURCE_SUFFIXES),
    (SourcelessFileLoader, BYTECODE_SUFFIXES),
)


@dataclass(frozen=True)
class Program:
    """A script (`target` is its path) or a module (its dotted name) of this very Python."""

    target: str
    is_module: bool
    arguments: tuple[str, ...]

    def render(self) -> dict[str, object]:
        return {"target": self.target, "is_module": self.is_module, "arguments": list(self.arguments)}

    @property
    def folder(self) -> Path:
        """What Python puts first on its path: the script's own folder, links resolved, or for a module the current."""
        return Path.cwd() if self.is_module else Path(self.target).resolve().parent


def parse_program(command: Sequence[str]) -> Program | str:
    """The program in a worker's command, or why this Python cannot run it by itself, in a few words."""
    if not _is_this_python(command[0]):
        return f"{command[0]} is not this Python"
    rest = list(command[1:])
    while rest and rest[0] in _HARMLESS_FLAGS:
        rest.pop(0)
    is_module = rest[:1] == ["-m"]
    if is_module:
        rest.pop(0)
    if not rest or rest[0].startswith("-"):
        return f"Python gets the option {rest[0]}" if rest else "Python gets no script"
    if not is_module and not Path(rest[0]).is_file():
        return f"{rest[0]} is no file"  # a folder or an archive with a __main__.py
    return Program(target=rest[0], is_module=is_module, arguments=tuple(rest[1:]))


def _is_this_python(name: str) -> bool:
    """By file and by folder: the Python of a virtual environment is a link to one without its packages."""
    found = shutil.which(name)
    if found is None:
        return False
    theirs, ours = Path(found), Path(sys.executable)
    return theirs.samefile(ours) and theirs.parent.resolve() == ours.parent.resolve()


def find_shadowed(folder: Path, imported: Collection[str]) -> str | None:
    """A top-level module of `imported` that one in `folder` would have replaced, had it come first; None if none.

    Python's own finders are asked: what is built in or frozen goes before any folder, and a folder without
    `__init__.py` never goes before a module found later on the path (PEP 420).
    """
    heads = {name.partition(".")[0] for name in imported} - {OURS, "__main__"}
    first = {name for name in heads if BuiltinImporter.find_spec(name) or FrozenImporter.find_spec(name)}
    there = FileFinder(str(folder), *_LOADERS)
    found = ((name, there.find_spec(name)) for name in sorted(heads - first))
    return next((name for name, spec in found if spec is not None and spec.loader is not None), None)


def run_program(program: Program) -> None:
    """Run it as `python -u [-m] TARGET ARGUMENTS` would, in this process: a module `__main__` of its own, read anew.

    Whatever it raises comes through, SystemExit above all.
    """
    folder = program.folder
    if _has_another_of_our_name(folder):
        for name in [name for name in sys.modules if name.partition(".")[0] == OURS]:
            del sys.modules[name]
    sys.argv = [program.target, *program.arguments]
    sys.path.insert(0, str(folder))
    if program.is_module:
        runpy.run_module(program.target, run_name="__main__", alter_sys=True)
        return
    main = ModuleType("__main__")
    loader = SourceFileLoader("__main__", program.target)
    main.__dict__.update(__file__=program.target, __loader__=loader, __builtins__=__builtins__)
    sys.modules["__main__"] = main
    code = loader.source_to_code(loader.get_data(program.target), program.target)
    exec(code, main.__dict__)  # what Python itself does with a script


def _has_another_of_our_name(folder: Path) -> bool:
    package = folder / OURS
    if (package / "__init__.py").is_file():
        return not package.samefile(Path(__file__).parents[1])
    return (folder / f"{OURS}.py").is_file()
