"""Programs that check deployment files. A missing program skips the test; in CI it fails it."""

from __future__ import annotations

import os
import shutil
import sys
from pathlib import Path

import pytest


def require_program(name: str, how_to_get: str) -> str:
    """Return the program's path, next to this Python or on PATH."""
    beside = Path(sys.executable).parent / name
    found = str(beside) if beside.exists() else shutil.which(name)
    if found is None:
        missing(f"there is no {name} here: {how_to_get}")
    return found


def missing(why: str) -> None:
    if os.environ.get("CI"):
        pytest.fail(why)
    pytest.skip(why)
