"""An environment on disk: an interpreter that is found, packages from the registry, and what was installed.

Whoever runs it decides on the versions: a constraints file of the machine's own is replaced.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from packaging.utils import canonicalize_name

_INSTALL_S = 2400
_INSTALLED = "import json, importlib.metadata as m; print(json.dumps({d.name: d.version for d in m.distributions()}))"


class NotBuilt(Exception):
    """There is no such interpreter, or its packages cannot be installed; the text says which and why."""


@dataclass(frozen=True)
class Venv:
    folder: Path

    @property
    def python(self) -> Path:
        return self.folder / "bin" / "python"

    def python_version(self) -> str:
        question = "import platform; print(platform.python_version())"
        return subprocess.run([self.python, "-c", question], capture_output=True, text=True, check=True).stdout.strip()

    def versions(self) -> dict[str, str]:
        """What is installed, by canonical name."""
        printed = subprocess.run([self.python, "-c", _INSTALLED], capture_output=True, text=True, check=True).stdout
        return {canonicalize_name(name): version for name, version in json.loads(printed).items()}


def find_interpreter(version: str) -> Path | None:
    """The interpreter that `pythonX.Y` on PATH runs. A name that runs nothing, as a shim may, is passed over."""
    question = "import sys; print(sys.executable, *sys.version_info[:2])"
    for folder in os.get_exec_path():
        command = Path(folder) / f"python{version}"
        if not command.exists():
            continue
        try:
            # A shim of pyenv runs a version only where it is asked for.
            environ = {**os.environ, "PYENV_VERSION": version}
            run = subprocess.run([command, "-c", question], capture_output=True, text=True, env=environ, timeout=60)
        except (OSError, subprocess.TimeoutExpired):
            continue
        path, *found = run.stdout.split() or [""]
        if run.returncode == 0 and ".".join(found) == version:
            return Path(path)
    return None


def build_wheel(root: Path, folder: Path) -> Path:
    """This project's wheel, made from a copy of its sources: a build leaves files beside them. Raises NotBuilt."""
    sources = folder / "sources"
    tracked = subprocess.run(["git", "ls-files", "-z"], cwd=root, capture_output=True, text=True, check=True).stdout
    for name in filter(None, tracked.split("\0")):
        if name.split("/")[0] in ("orchestrator", "trainer", "alembic", "pyproject.toml", "README.md", "LICENSE"):
            _copy(root / name, sources / name)
    _run([sys.executable, "-m", "pip", "wheel", "--quiet", "--no-deps", "--wheel-dir", folder, sources], folder)
    return next(folder.glob("*.whl"))


def build_venv(interpreter: Path, folder: Path, packages: Sequence[str], constraints: str) -> Venv:
    """Install packages, within a constraints file of this text. Raises NotBuilt."""
    venv = Venv(folder)
    _run([interpreter, "-m", "venv", folder], folder.parent)
    limits = folder / "constraints.txt"
    limits.write_text(constraints)
    _run([venv.python, "-m", "pip", "install", "--quiet", *packages], folder, PIP_CONSTRAINT=str(limits))
    _run([venv.python, "-m", "pip", "check"], folder)
    return venv


def _copy(source: Path, target: Path) -> None:
    target.parent.mkdir(parents=True, exist_ok=True)
    if source.is_symlink():
        target.symlink_to(source.readlink())
    else:
        shutil.copyfile(source, target)


def _run(command: Sequence[str | Path], folder: Path, **variables: str) -> None:
    environ = {**os.environ, "PIP_DISABLE_PIP_VERSION_CHECK": "1", **variables}
    environ.pop("PYTHONPATH", None)
    try:
        run = subprocess.run(command, cwd=folder, env=environ, capture_output=True, text=True, timeout=_INSTALL_S)
    except subprocess.TimeoutExpired as error:
        raise NotBuilt(f"{_shown(command)}: not done after {_INSTALL_S} s") from error
    if run.returncode != 0:
        lines = [line for line in (run.stdout + run.stderr).splitlines() if line and not line.startswith("WARNING")]
        raise NotBuilt(f"{_shown(command)}: {' | '.join(lines[-4:])}")


def _shown(command: Sequence[str | Path]) -> str:
    return " ".join(Path(word).name if isinstance(word, Path) else word for word in command)
