"""Every test of job folders runs with openat2(2) and without it, as on an old kernel."""

from __future__ import annotations

import errno
from collections.abc import Sequence

import pytest

from orchestrator.jobfolder import folder


def _refuse(above: int, names: Sequence[str], flags: int) -> int:
    raise OSError(errno.ENOSYS, "the kernel has no such call")


@pytest.fixture(autouse=True, params=["in one call", "step by step"])
def _descent(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    if request.param == "step by step":
        monkeypatch.setattr(folder, "open_beneath", _refuse)
