"""What an agent finds out before it starts anything."""

from __future__ import annotations

import importlib.util
from pathlib import Path

from trainer.contract.failure import FailureKind
from trainer.elastic import launch


def test_a_program_that_is_not_there_is_told_from_one_that_may_not_be_run(tmp_path: Path) -> None:
    plain = tmp_path / "plain"
    plain.touch(mode=0o644)
    cases = {"/nowhere/program": "does not exist", "no-such-program": "does not exist", str(plain): "permission denied"}
    for program, why in cases.items():
        failure = launch.find_missing([program])
        assert failure is not None
        assert (failure.kind, why in failure.message) == (FailureKind.LAUNCH, True), failure
    plain.chmod(0o755)
    assert launch.find_missing([str(plain)]) is None


def test_modules_that_are_loaded_ahead_of_the_bundled_trainer_exist() -> None:
    """One that does not costs every restart the time that spare workers were to spare it."""
    assert hasattr(importlib.import_module(launch._WARMUP), "warm_up")
    for name in launch._OURS:
        assert importlib.util.find_spec(name) is not None, name
