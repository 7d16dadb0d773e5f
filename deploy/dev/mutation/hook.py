"""Imports one module from another text than its file's. Nothing on disk is touched, compiled files included."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from importlib.abc import MetaPathFinder
from importlib.machinery import ModuleSpec, SourceFileLoader
from importlib.util import spec_from_file_location
from pathlib import Path
from types import CodeType, ModuleType

from deploy.dev.mutation.mutants import Mutant


class _OtherText(SourceFileLoader):
    def __init__(self, name: str, path: str, text: str) -> None:
        super().__init__(name, path)
        self._text = text

    def get_code(self, fullname: str) -> CodeType:
        return compile(self._text, self.path, "exec", dont_inherit=True)


class _Finder(MetaPathFinder):
    def __init__(self, name: str, path: Path, text: str) -> None:
        self._name = name
        self._path = str(path)
        self._text = text

    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        if fullname != self._name:
            return None
        return spec_from_file_location(fullname, self._path, loader=_OtherText(fullname, self._path, self._text))


def install(mutant: Mutant, root: Path) -> None:
    """From now on this process imports the mutant. Raises RuntimeError when it has the module already."""
    name = mutant.path.removesuffix(".py").replace("/", ".")
    if name in sys.modules:
        raise RuntimeError(f"{name} was imported before its mutant could take its place")
    path = root / mutant.path
    sys.meta_path.insert(0, _Finder(name, path, mutant.applied_to(path.read_text())))
