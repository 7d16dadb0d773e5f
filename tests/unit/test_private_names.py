"""Names that torch may change in any release are used in one module only."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
FOLDERS = ("trainer", "orchestrator", "deploy", "benchmarks")
HOME = ROOT / "trainer" / "worker" / "torch_compat.py"


def private_names(source: str) -> Iterator[str]:
    """Names with a leading underscore that are imported from torch, or read from something that was."""
    if "torch" not in source:
        return
    tree = ast.parse(source)
    known: set[str] = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            for alias in node.names:
                if is_torch(alias.name):
                    known.add(alias.asname or "torch")
                    yield from (part for part in alias.name.split(".") if is_private(part))
        elif isinstance(node, ast.ImportFrom) and is_torch(node.module or "") and not node.level:
            yield from (part for part in (node.module or "").split(".") if is_private(part))
            for alias in node.names:
                known.add(alias.asname or alias.name)
                if is_private(alias.name):
                    yield alias.name
    for node in ast.walk(tree):
        if isinstance(node, ast.Attribute) and is_private(node.attr) and root_of(node.value) in known:
            yield node.attr


def is_torch(module: str) -> bool:
    return module.split(".")[0] in ("torch", "torchx")


def is_private(name: str) -> bool:
    return name.startswith("_") and not name.startswith("__")


def root_of(node: ast.expr) -> str | None:
    while isinstance(node, ast.Attribute):
        node = node.value
    return node.id if isinstance(node, ast.Name) else None


@pytest.mark.parametrize(
    ("source", "found"),
    [
        ("import torch\ntorch._foreach_mul_(x)", ["_foreach_mul_"]),
        ("import torch.distributed as dist\ndist._shutdown()", ["_shutdown"]),
        ("from torch._subclasses import FakeTensor", ["_subclasses"]),
        ("def f():\n    from torch.utils.data import _utils", ["_utils"]),
        ("from torch.distributed import run\nrun.config._hidden", ["_hidden"]),
        ("import torch\ntorch.__version__\nself._state\ntorch.add(_x)", []),
    ],
)
def test_a_private_name_is_found_wherever_it_stands(source: str, found: list[str]) -> None:
    assert list(private_names(source)) == found


def test_private_names_of_torch_stand_in_one_module() -> None:
    modules = [path for folder in FOLDERS for path in (ROOT / folder).rglob("*.py") if path != HOME]
    assert len(modules) > 300
    found = {str(path.relative_to(ROOT)): list(private_names(path.read_text())) for path in modules}
    assert {path: names for path, names in found.items() if names} == {}
    assert list(private_names(HOME.read_text()))


def test_their_module_is_imported_quickly() -> None:
    """Every worker imports it before its program. With torch.distributed.checkpoint this would take a second."""
    tree = ast.parse(HOME.read_text())
    names = {alias.name for node in tree.body if isinstance(node, ast.Import) for alias in node.names}
    names |= {str(node.module) for node in tree.body if isinstance(node, ast.ImportFrom)}
    assert {name for name in names if is_torch(name)} == {"torch", "torch.distributed"}
