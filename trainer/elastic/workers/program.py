"""Find the program in a worker's command, and run it in a process that has already imported torch."""

from __future__ import annotations

import os
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
from itertools import pairwise
from pathlib import Path
from types import ModuleType

OURS = "trainer"  # this package. It may be preloaded, but a user's package of that name takes precedence
_HARMLESS_FLAGS = ("-u",)  # a worker's output is unbuffered anyway
_LOADERS = (
    (ExtensionFileLoader, EXTENSION_SUFFIXES),
    (SourceFileLoader, SOURCE_SUFFIXES),
    (SourcelessFileLoader, BYTECODE_SUFFIXES),
)


@dataclass(frozen=True)
class Program:
    """A script (`target` is its path) or a module (`target` is its dotted name) for this Python interpreter."""

    target: str
    is_module: bool
    arguments: tuple[str, ...]

    def render(self) -> dict[str, object]:
        return {"target": self.target, "is_module": self.is_module, "arguments": list(self.arguments)}

    @property
    def is_bundled(self) -> bool:
        """Whether it is the bundled trainer, if no package of its name takes precedence."""
        return self.is_module and self.target == OURS

    @property
    def folder(self) -> Path:
        """What Python puts first on its path: the script's folder, links resolved; for a module, the current folder."""
        return Path.cwd() if self.is_module else Path(self.target).resolve().parent


def runs_our_trainer(command: Sequence[str]) -> bool:
    """Whether the command runs the bundled trainer, by whatever interpreter."""
    return ("-m", OURS) in pairwise(command)


def find_imports(command: Sequence[str]) -> list[str]:
    """Modules that the program of a worker's command imports before its first step, besides torch."""
    program = parse_program(command)
    is_ours = isinstance(program, Program) and program.is_bundled
    # All that trainer/__main__.py imports, and torch._dynamo, whose import by DDP takes most of a second. Not
    # trainer.__main__ itself, because runpy warns about a module that is already imported.
    ours = ["torch.distributed.elastic.multiprocessing.errors", "torch._dynamo", f"{OURS}.train"]
    return ours if is_ours else []


def parse_program(command: Sequence[str]) -> Program | str:
    """The program in a worker's command, or the reason why this Python process cannot run it itself."""
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
        return f"{rest[0]} is not a file"  # a folder with a __main__.py, or missing
    return Program(target=rest[0], is_module=is_module, arguments=tuple(rest[1:]))


def _is_this_python(name: str) -> bool:
    """Compare file and folder: a virtual environment's Python is a link to one that lacks its packages."""
    found = shutil.which(name)
    if found is None:
        return False
    theirs, ours = Path(found), Path(sys.executable)
    return theirs.samefile(ours) and theirs.parent.resolve() == ours.parent.resolve()


def find_shadowed(folder: Path, imported: Collection[str]) -> str | None:
    """A top-level module of `imported` that Python would have imported from `folder`, had it been first on the path.

    None if there is none. `imported` may be `sys.modules`. This follows Python's finders: built-in and frozen modules
    precede every folder, and a folder without `__init__.py` never precedes a module later on the path (PEP 420).
    """
    # A restart waits for this. To go through `imported` would copy the pages of thousands of names after a fork.
    try:
        named = {name.partition(".")[0] for name in os.listdir(folder)}  # noqa: PTH208  # may be many
    except OSError:
        return None
    heads = {name for name in named - {OURS, "__main__"} if name in imported}
    first = {name for name in heads if BuiltinImporter.find_spec(name) or FrozenImporter.find_spec(name)}
    there = FileFinder(str(folder), *_LOADERS)
    found = ((name, there.find_spec(name)) for name in sorted(heads - first))
    return next((name for name, spec in found if spec is not None and spec.loader is not None), None)


def run_program(program: Program) -> None:
    """Run the program in this process as `python -u [-m] TARGET ARGUMENTS` would, in a new module `__main__`.

    Raises what the program raises, including SystemExit.
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
    exec(code, main.__dict__)  # as Python runs a script


def _has_another_of_our_name(folder: Path) -> bool:
    package = folder / OURS
    if (package / "__init__.py").is_file():
        return not package.samefile(Path(__file__).parents[1])
    return (folder / f"{OURS}.py").is_file()
