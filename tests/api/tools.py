"""Programs from PyPI, each in its own environment, which is built once below the folder for temporary files.

They are no extras of this package, since they need 100 MB of packages and pin other versions.
"""

from __future__ import annotations

import fcntl
import subprocess
import sys
from pathlib import Path

SCHEMATHESIS = "schemathesis==4.32.5"
CLIENT_GENERATOR = "openapi-python-client==0.29.1"
_BUILD_S = 600


class NoTool(Exception):
    """The program cannot be installed. The message holds pip's output."""


def install_tool(requirement: str) -> Path:
    """The folder of the programs of `name==version`. Several may ask at once. Raises NoTool."""
    cache = Path(__file__).parents[2] / "build" / "conformance"
    cache.mkdir(parents=True, exist_ok=True)
    folder = cache / f"{requirement.replace('==', '-')}-py{sys.version_info.major}{sys.version_info.minor}"
    with (cache / "lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not (folder / "ready").exists():
            _build(folder, requirement)
            (folder / "ready").touch()
    return folder / "bin"


def _build(folder: Path, requirement: str) -> None:
    pip: list[str | Path] = [
        folder / "bin" / "python",
        "-m",
        "pip",
        "--disable-pip-version-check",
        "install",
        "--quiet",
    ]
    venv: list[str | Path] = [sys.executable, "-m", "venv", "--clear", folder]
    for command in (venv, [*pip, requirement]):
        done = subprocess.run(command, capture_output=True, text=True, timeout=_BUILD_S, check=False)
        if done.returncode != 0:
            raise NoTool(f"{requirement} cannot be installed: {done.stderr[-2000:]}")
