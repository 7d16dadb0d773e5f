"""What the crash-point matrix and the soak found, told small."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, cast

import pytest

from orchestrator import process, rundir
from orchestrator.domain.errors import LeaseLost
from orchestrator.domain.job.attempt import AttemptState
from orchestrator.domain.job.job import Desired, JobState
from orchestrator.domain.job.launch_plan import Site
from orchestrator.domain.observation.observation import Presence
from orchestrator.domain.policy.decide import decide
from orchestrator.domain.policy.situation import Situation
from orchestrator.jobfolder.folder import Folder
from orchestrator.ports.cluster import Backend
from orchestrator.ports.supervision import Change, SupervisorWriter
from orchestrator.settings import Settings
from orchestrator.supervisor.act import Actor
from tests.unit.situations import KEY, a_job, a_replica, a_situation, an_attempt, seen
from trainer.contract import layout
from trainer.contract.progress import Phase
from trainer.elastic.records.claim import ClaimRefused, claim_attempt


class Applied:
    """A store that keeps what was applied."""

    def __init__(self) -> None:
        self.changes: list[Change] = []

    def apply(self, change: Change) -> None:
        self.changes.append(change)


def ended_unseen(root: Path, s: Situation, *, require_lease: Any = lambda: None) -> Sequence[Change]:
    """What is applied where the policy ends the attempt of the situation."""
    store = Applied()
    actor = Actor(
        cast(SupervisorWriter, store),
        cast(Backend, None),
        rundir.LocalRunDirectories(root),
        cast(Site, None),
        ports=range(20000, 20010),
        require_lease=require_lease,
    )
    actor.act(s, decide(s), ())
    return store.changes


def cancelled_before_its_submission() -> Situation:
    job = a_job(JobState.STARTING, desired=Desired(number=1, cancelled=True))
    return a_situation(job, an_attempt(AttemptState.INTENDED, started_at=None), seen(Presence.ABSENT))


def test_no_agent_can_begin_an_attempt_that_ended_before_it_was_submitted(tmp_path: Path) -> None:
    (change,) = ended_unseen(tmp_path, cancelled_before_its_submission())
    assert change.job.state is JobState.CANCELLED
    with pytest.raises(ClaimRefused):
        claim_attempt(layout.attempt_dir(tmp_path / KEY.job_id, KEY.number), "the submission of a service that slept")


def test_an_attempt_that_an_agent_has_just_begun_is_not_ended_as_one_that_never_was(tmp_path: Path) -> None:
    claim_attempt(layout.attempt_dir(tmp_path / KEY.job_id, KEY.number), "a submission")
    assert not ended_unseen(tmp_path, cancelled_before_its_submission())


def test_an_attempt_is_not_withdrawn_without_the_lease(tmp_path: Path) -> None:
    def lost() -> None:
        raise LeaseLost("it is over")

    with pytest.raises(LeaseLost):
        ended_unseen(tmp_path, cancelled_before_its_submission(), require_lease=lost)
    assert rundir.LocalRunDirectories(tmp_path).withdraw(KEY.job_id, KEY.number), "nobody has begun it"


def test_an_attempt_may_be_withdrawn_again(tmp_path: Path) -> None:
    folders = rundir.LocalRunDirectories(tmp_path)
    assert folders.withdraw("train-abc", 1)
    assert folders.withdraw("train-abc", 1)
    assert [path.name for path in layout.attempt_dir(tmp_path / "train-abc", 1).iterdir()] == [layout.CLAIM]


@pytest.mark.parametrize("phase", Phase)
def test_a_decision_is_made_in_every_phase(phase: Phase) -> None:
    s = a_situation(a_job(), an_attempt(), seen(Presence.RUNNING, a_replica(), phase=phase.value))
    looks_again = decide(s).look_again_at
    assert looks_again is None or looks_again > s.now


def test_two_services_that_start_at_once_do_not_trip_over_each_other(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write = rundir.write_document

    def write_and_lose(folder: Folder, path: Path, document: Mapping[str, object]) -> None:
        """The other one tries the same, and has cleaned up first."""
        write(folder, path, document)
        folder.remove(path)

    monkeypatch.setattr(rundir, "write_document", write_and_lose)
    assert process.check_settings(Settings(root=tmp_path)).root == tmp_path.resolve()
