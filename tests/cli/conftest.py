"""A fake service, and the real command line against it."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.cli.fake_service import FakeService

Run = Callable[..., subprocess.CompletedProcess[str]]


@pytest.fixture
def service(tmp_path: Path) -> Iterator[FakeService]:
    service = FakeService(tmp_path / "root")
    service.start()
    yield service
    service.stop()


@pytest.fixture
def environment(tmp_path: Path) -> dict[str, str]:
    kept = {name: value for name, value in os.environ.items() if not name.startswith(("ORCHESTRATOR_", "TORCHX"))}
    return {**kept, "ORCHESTRATOR_ROOT": str(tmp_path / "root"), "ORCHESTRATOR_PORT": "1", "HOME": str(tmp_path)}


@pytest.fixture
def run(tmp_path: Path, environment: dict[str, str]) -> Run:
    """Run `orchestrator` as a person would, in an empty folder."""

    def run(*arguments: str, stdin: str = "", **more: str) -> subprocess.CompletedProcess[str]:
        program = Path(sys.executable).with_name("orchestrator")
        return subprocess.run(
            [program, *arguments],
            input=stdin,
            env={**environment, **more},
            cwd=tmp_path,
            capture_output=True,
            text=True,
            timeout=60,
            check=False,
        )

    return run
