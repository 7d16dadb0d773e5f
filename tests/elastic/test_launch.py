"""What an agent finds out before it starts anything."""

from __future__ import annotations

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
