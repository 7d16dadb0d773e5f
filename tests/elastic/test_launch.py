"""Checks of an agent before it starts workers."""

from __future__ import annotations

import importlib.util
import sys
from pathlib import Path

from trainer.contract.failure import FailureKind
from trainer.elastic import launch
from trainer.elastic.workers.program import find_imports


def test_a_missing_program_and_one_without_permission_have_different_messages(tmp_path: Path) -> None:
    plain = tmp_path / "plain"
    plain.touch(mode=0o644)
    cases = {"/nowhere/program": "does not exist", "no-such-program": "does not exist", str(plain): "permission denied"}
    for program, why in cases.items():
        failure = launch.find_missing([program])
        assert failure is not None
        assert (failure.kind, why in failure.message) == (FailureKind.LAUNCH, True), failure
    plain.chmod(0o755)
    assert launch.find_missing([str(plain)]) is None


def test_modules_that_are_preloaded_for_the_bundled_trainer_exist() -> None:
    """The agent only logs a missing module, and restarts become slower."""
    assert hasattr(importlib.import_module(launch._WARMUP), "warm_up")
    for name in (*find_imports([sys.executable, "-m", "trainer"]), *launch._LATER):
        assert importlib.util.find_spec(name) is not None, name
