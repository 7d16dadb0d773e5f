"""Jobs in torchx's states and descriptions."""

from __future__ import annotations

import json
from datetime import timedelta

import pytest
from torchx.specs import NONE, AppState

from orchestrator.domain.job.job import JobState
from orchestrator.domain.specs.spec import JobSpec
from orchestrator.torchx_scheduler.states import APP_STATES, describe
from tests.cli.fake_service import AT, make_failure, make_job


def make_spec(nodes: str) -> JobSpec:
    document = {
        "name": "a",
        "run": {"script": "a.py", "args": ["x"]},
        "topology": {"nodes": nodes, "workers_per_node": 1},
    }
    return JobSpec.model_validate(document)


@pytest.mark.parametrize("state", JobState)
def test_every_state_maps_to_torchx_and_terminal_states_stay_distinct(state: JobState) -> None:
    assert (APP_STATES[state] in (AppState.SUCCEEDED, AppState.FAILED, AppState.CANCELLED)) is state.terminal
    assert len({APP_STATES[end] for end in JobState if end.terminal}) == 3


def test_a_failure_is_shown_at_the_replica_of_its_rank() -> None:
    job = make_job(state=JobState.FAILED, failure=make_failure(), spec=make_spec("2"), attempts=3, restarts=4)
    job = job.model_copy(update={"finished_at": AT + timedelta(seconds=9)})
    described = describe(job, "http://x")
    first, second = described.roles_statuses[0].replicas
    assert (described.num_restarts, described.msg, described.ui_url) == (6, job.reason, f"http://x/jobs/{job.id}")
    assert json.loads(described.structured_error_msg)["kind"] == "application"
    assert first.structured_error_msg == NONE
    message = json.loads(second.structured_error_msg)["message"]
    assert (message["message"], message["errorCode"]) == ("ValueError: boom", 1)
    assert message["extraInfo"]["timestamp"] == str(int((AT + timedelta(seconds=9)).timestamp()))


@pytest.mark.parametrize(
    ("state", "app_state"),
    [
        (JobState.QUEUED, AppState.SUBMITTED),
        (JobState.STARTING, AppState.PENDING),
        (JobState.SUSPENDED, AppState.PENDING),
    ],
)
def test_a_waiting_job_shows_its_reason(state: JobState, app_state: AppState) -> None:
    waiting = make_job(state=state, reason="needs 3 slots; 1 of 4 is free", failure=make_failure())
    described = describe(waiting.model_copy(update={"pending": ["resume"]}), "http://x")
    assert (described.state, described.msg) == (app_state, waiting.reason)
    structured = json.loads(described.structured_error_msg)
    assert structured == {"state": state.value, "reason": waiting.reason, "pending": ["resume"]}
    assert [replica.structured_error_msg for replica in described.roles_statuses[0].replicas] == [NONE]


def test_a_recovering_job_shows_its_failure() -> None:
    assert describe(make_job(state=JobState.RUNNING), "http://x").structured_error_msg == NONE
    recovering = describe(make_job(state=JobState.RECOVERING, failure=make_failure()), "http://x")
    assert json.loads(recovering.structured_error_msg)["message"] == "ValueError: boom"


def test_replicas_without_a_worker_are_pending_in_a_running_job() -> None:
    described = describe(make_job(state=JobState.RUNNING, spec=make_spec("1:3")), "http://x", absent={2})
    states = [replica.state for replica in described.roles_statuses[0].replicas]
    assert states == [AppState.RUNNING, AppState.RUNNING, AppState.PENDING]
    assert (described.roles[0].min_replicas, described.roles[0].num_replicas) == (1, 3)
    assert (described.roles[0].entrypoint, described.roles[0].args) == ("a.py", ["x"])
