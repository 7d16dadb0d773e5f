"""Broken interpreters with which no agent can start."""

from __future__ import annotations

import sys
from pathlib import Path


def write_python_with_a_wrong_torch(folder: Path) -> Path:
    """A Python whose torch can be imported but lacks what an agent needs."""
    torch = folder / "wrong" / "torch"
    torch.mkdir(parents=True, exist_ok=True)
    (torch / "__init__.py").write_text("__version__ = '99.1'\n")
    return _write(folder, f'PYTHONPATH={torch.parent}"${{PYTHONPATH:+:$PYTHONPATH}}" exec {sys.executable} "$@"')


def write_python_that_never_begins(folder: Path) -> Path:
    return _write(folder, "exec sleep 600")


def _write(folder: Path, line: str) -> Path:
    path = folder / "python"
    path.write_text(f"#!/bin/sh\n{line}\n")
    path.chmod(0o755)
    return path
