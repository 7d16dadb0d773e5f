"""A fake service, and the command line against it."""

from __future__ import annotations

import io
import os
import sys
from collections.abc import Callable, Iterator
from contextlib import redirect_stderr, redirect_stdout
from pathlib import Path
from subprocess import CompletedProcess
from unittest.mock import patch

import pytest

from orchestrator.cli import main as command_line
from orchestrator.cli.render import console
from tests.cli.fake_service import FakeService

Run = Callable[..., CompletedProcess[str]]


@pytest.fixture
def service(tmp_path: Path) -> Iterator[FakeService]:
    service = FakeService(tmp_path / "root")
    service.start()
    yield service
    service.stop()


@pytest.fixture
def environment(tmp_path: Path) -> dict[str, str]:
    kept = {name: value for name, value in os.environ.items() if not name.startswith(("ORCHESTRATOR_", "TORCHX"))}
    return {**kept, "ORCHESTRATOR_ROOT": str(tmp_path / "root"), "HOME": str(tmp_path)}


@pytest.fixture
def run(tmp_path: Path, environment: dict[str, str], monkeypatch: pytest.MonkeyPatch) -> Run:
    """Run `orchestrator` in an empty folder, in this process, because a new process takes half a second to start."""
    monkeypatch.setattr(command_line, "calm_collector", lambda: None)  # it changes settings of the whole process
    monkeypatch.chdir(tmp_path)

    def run(*arguments: str, stdin: str = "", columns: int | None = None, **more: str) -> CompletedProcess[str]:
        told = [io.TextIOWrapper(io.BytesIO(), encoding="utf-8", write_through=True) for _ in range(2)]
        if columns is not None:  # a terminal
            more |= {"TERM": "dumb", "COLUMNS": str(columns)}
            for stream in told:
                monkeypatch.setattr(stream, "isatty", lambda: True)
        monkeypatch.setattr(sys, "argv", ["orchestrator", *arguments])
        monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(stdin.encode()), encoding="utf-8"))
        console.cache_clear()
        with (
            patch.dict(os.environ, {**environment, **more}, clear=True),
            redirect_stdout(told[0]),
            redirect_stderr(told[1]),
            pytest.raises(SystemExit) as ended,
        ):
            command_line.main()
        status = ended.value.code or 0
        assert isinstance(status, int)
        return CompletedProcess(arguments, status, *(stream.buffer.getvalue().decode() for stream in told))

    return run
