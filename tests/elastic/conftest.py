"""The fixture that every test with real agents starts from."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.elastic.harness import Job, short_tmpdir


@pytest.fixture
def job(tmp_path: Path) -> Iterator[Job]:
    started = Job(tmp_path / "job-1")
    yield started
    started.end()


@pytest.fixture
def tmpdir_variable(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Processes started meanwhile find a TMPDIR that is removed."""
    with short_tmpdir() as folder:
        monkeypatch.setenv("TMPDIR", folder)
        yield
