"""What an agent says of its own end."""

from __future__ import annotations

from pathlib import Path

import pytest
from torch.distributed import DistStoreError
from torch.distributed.elastic.rendezvous import RendezvousClosedError

from trainer.contract.failure import Failure, FailureKind
from trainer.elastic import launch
from trainer.elastic.nursery import Nursery
from trainer.elastic.stop import StopRequest


@pytest.mark.parametrize("error", [RendezvousClosedError(), DistStoreError("the store is gone")])
def test_a_lost_group_is_told_as_the_failure_before_it_or_as_a_lost_rendezvous(
    tmp_path: Path, error: Exception
) -> None:
    script = tmp_path / "script.py"
    script.touch()
    config, command = launch.parse_flags(["--standalone", str(script)], record=None)
    agent = launch._build_agent(config, command, None, StopRequest(), Nursery())
    assert launch._explain(error, agent, config).kind is FailureKind.RENDEZVOUS
    agent.history.failure = Failure(kind=FailureKind.UNKNOWN, message="a peer was gone")
    assert launch._explain(error, agent, config) is agent.history.failure


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
