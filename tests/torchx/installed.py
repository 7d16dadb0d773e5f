"""Virtual environments with one version of torchx each, in which this package is installed.

They are cached in build/, the nightly's for a day.
"""

from __future__ import annotations

import fcntl
import subprocess
import sys
from dataclasses import dataclass
from datetime import datetime, timezone
from pathlib import Path

import tomllib

ROOT = Path(__file__).parents[2]
STABLE, NIGHTLY = "torchx==0.7.0", "torchx-nightly"
_BESIDE = ("httpx>=0.27", "pydantic>=2.8", "pydantic-settings>=2.4", "pyyaml>=6")  # what the client imports
_BUILD_S = 600


class NoEnvironment(Exception):
    """The environment cannot be built here. The message contains pip's output."""


@dataclass(frozen=True, slots=True)
class Installed:
    requirement: str
    folder: Path

    @property
    def is_nightly(self) -> bool:
        return self.requirement == NIGHTLY

    @property
    def torchx(self) -> Path:
        return self.folder / "bin" / "torchx"

    def run(
        self, *arguments: str, env: dict[str, str], cwd: Path, timeout_s: float = 120
    ) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            [self.torchx, *arguments], env=env, cwd=cwd, capture_output=True, text=True, timeout=timeout_s, check=False
        )


def install(requirement: str) -> Installed:
    """Build or reuse the environment with this version of torchx. Raises NoEnvironment."""
    cache = ROOT / "build" / "torchx"
    cache.mkdir(parents=True, exist_ok=True)
    day = f"-{datetime.now(timezone.utc):%Y%m%d}" if requirement == NIGHTLY else ""
    folder = cache / f"{requirement.replace('==', '-')}-py{sys.version_info.major}{sys.version_info.minor}{day}"
    with (cache / "lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not (folder / "ready").exists():
            _build(folder, requirement)
            (folder / "ready").touch()
    (packages,) = folder.glob("lib/python*/site-packages")
    write_entry_points(packages)
    (packages / "orchestrator.pth").write_text(f"{ROOT}\n")
    return Installed(requirement, folder)


def _build(folder: Path, requirement: str) -> None:
    pip = [folder / "bin" / "python", "-m", "pip", "--disable-pip-version-check", "install", "--quiet"]
    for command in ([sys.executable, "-m", "venv", "--clear", folder], [*pip, requirement, *_BESIDE]):
        done = subprocess.run(command, capture_output=True, text=True, timeout=_BUILD_S, check=False)
        if done.returncode != 0:
            raise NoEnvironment(f"{requirement} cannot be installed: {done.stderr[-2000:]}")


def write_entry_points(folder: Path) -> None:
    """Write the metadata by which torchx finds this package's plugins."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    info = folder / f"elastic_orchestrator-{project['version']}.dist-info"
    info.mkdir(exist_ok=True)
    sections = (
        f"[{group}]\n" + "".join(f"{name} = {target}\n" for name, target in entries.items())
        for group, entries in project["entry-points"].items()
    )
    (info / "entry_points.txt").write_text("\n".join(sections))
    (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {project['name']}\nVersion: {project['version']}\n")
