"""Jobs that cannot start on Kubernetes: the reason that is shown, the retries, and the end."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from structlog.testing import capture_logs

from orchestrator.backends.kubernetes.backend import KubernetesBackend, render_moment
from orchestrator.backends.kubernetes.client import KubernetesClient
from orchestrator.backends.kubernetes.rights import RIGHTS
from orchestrator.backends.kubernetes.site import KubernetesSite
from orchestrator.domain.job.attempt import AttemptState
from orchestrator.domain.job.job import JobState
from tests.kubernetes import records
from tests.kubernetes.conftest import build
from tests.kubernetes.fake_api import FakeApi, Json
from tests.kubernetes.supervised import Supervised

CREATE = {("jobs", "create")}
NO_RIGHT = "the service has no right to do this in the cluster"


@pytest.fixture
def world(own: KubernetesSite, client: KubernetesClient, tmp_path: Path) -> Iterator[Supervised]:
    opened: list[KubernetesBackend] = []

    def build_backend(**given: Any) -> KubernetesBackend:
        opened.append(build(own, client, **given))
        return opened[-1]

    yield Supervised(build_backend, tmp_path)
    for each in opened:
        each.close()


def take_all_rights(api: FakeApi) -> None:
    api.store.denied = {(right.resource, verb) for right in RIGHTS for verb in right.verbs}


def go_blind(api: FakeApi) -> None:
    take_all_rights(api)
    api.store.forget_history()  # which ends the watches


def recorded_status(stream: str, t: float) -> Json:
    """Return the status of the first pod of a recorded stream at that second, with our container name."""
    lines = [one for one in records.lines(stream) if one.resource == "pods" and one.event["type"] != "BOOKMARK"]
    found: Json = [one for one in lines if one.t <= t][-1].event["object"]["status"]
    return {**found, "containerStatuses": [{**one, "name": "agent"} for one in found.get("containerStatuses", [])]}


# A forbidden submission: the refusal proves that nothing was created, even if the cluster cannot be observed later.


@pytest.mark.parametrize("blind", [False, True], ids=["the cluster can be observed", "the cluster cannot be observed"])
def test_a_job_whose_submission_is_forbidden_shows_it_and_can_be_cancelled(
    api: FakeApi, world: Supervised, blind: bool
) -> None:
    api.store.denied = CREATE
    world.add()
    world.go_on(3)
    if blind:
        go_blind(api)
        world.until(lambda job: not world.answers)
    assert (world.job().state, [each.state for each in world.attempts()]) == (
        JobState.STARTING,
        [AttemptState.INTENDED],
    )
    assert f"waits: {NO_RIGHT}: jobs.batch is forbidden" in world.job().reason
    assert 'cannot create resource "jobs"' in world.job().reason
    world.cancel()
    world.go_on(2)
    assert world.job().state is JobState.CANCELLED
    assert [each.state for each in world.attempts()] == [AttemptState.CANCELLED]


def test_without_any_right_the_job_stays_queued_and_can_be_cancelled(api: FakeApi, world: Supervised) -> None:
    take_all_rights(api)
    world.add()
    world.go_on(3)
    assert world.job().reason.startswith(f"waits: {NO_RIGHT}: jobs.batch is forbidden")
    assert (world.job().state, world.attempts()) == (JobState.QUEUED, [])
    world.cancel()
    world.go_on(1)
    assert world.job().state is JobState.CANCELLED


def test_the_job_starts_once_the_right_is_granted(api: FakeApi, world: Supervised) -> None:
    api.store.denied = CREATE
    world.add()
    world.go_on(3)
    api.store.denied = set()
    world.until(lambda job: bool(api.store.all("jobs")), seconds=5)
    assert [each.key.number for each in world.attempts()] == [1]
    assert world.attempts()[0].not_permitted is None


def test_a_forbidden_submission_is_retried_with_growing_pauses(api: FakeApi, world: Supervised) -> None:
    api.store.denied = CREATE
    world.add()
    world.go_on(600)
    tries = api.store.calls.count(("batch", "jobs", "create"))
    assert 8 <= tries <= 16, "in ten minutes: after 10, 20 and 40 s, then once a minute"


def test_an_attempt_that_cannot_be_observed_is_not_given_up(api: FakeApi, world: Supervised) -> None:
    """The submission may have succeeded although the answer was lost. Only the cluster knows."""
    world.add()
    world.go_on(1)
    go_blind(api)
    world.cancel()
    world.until(lambda job: NO_RIGHT in job.reason)
    assert world.job().state is JobState.STARTING
    assert not world.attempts()[0].state.terminal


def test_an_hour_of_the_same_error_is_a_few_log_lines(api: FakeApi, world: Supervised) -> None:
    api.cluster.held = recorded_status("07-unschedulable-gpu", 2.0)  # a running pod would end meanwhile
    world.add()
    world.go_on(1)
    go_blind(api)
    world.cancel()
    world.until(lambda job: NO_RIGHT in job.reason)
    with capture_logs() as logs:
        world.go_on(120, seconds=30)
    warnings = [(one["event"], one.get("times")) for one in logs if one["log_level"] == "warning"]
    assert 4 <= len(warnings) <= 20, warnings
    assert len(repr(logs)) < 20_000


# The API server does not answer.


@pytest.mark.parametrize("state", [JobState.QUEUED, JobState.STARTING])
def test_an_unreachable_api_server_is_the_reason_with_its_time(
    api: FakeApi, world: Supervised, state: JobState
) -> None:
    world.go_on(1)
    if state is JobState.STARTING:
        api.cluster.held = recorded_status("07-unschedulable-gpu", 2.0)
        world.add()
        world.until(lambda job: "Insufficient nvidia.com/gpu" in job.reason)
    api.close()
    while world.answers:
        world.go_on(1, seconds=0.0)  # advancing the clock could reach another day
    if state is JobState.QUEUED:
        world.add()
    world.until(lambda job: "has not answered since" in job.reason)
    reason = re.fullmatch(
        r"waits: the Kubernetes API server has not answered since (\d\d:\d\d) UTC: .+", world.job().reason
    )
    assert reason is not None, world.job().reason
    assert world.job().state is state
    world.clock.advance(2 * 86400)
    world.go_on(1)
    since = re.search(r"since (\d{4}-\d\d-\d\d \d\d:\d\d) UTC", world.job().reason)
    assert since is not None, "a time on another day has its date"
    assert since[1].endswith(reason[1])


@pytest.mark.parametrize("latest", ["jobs", "pods"])
def test_the_api_server_is_silent_since_its_last_answer_to_any_request(
    api: FakeApi, world: Supervised, latest: str
) -> None:
    """The requests for Jobs and for pods do not end at the same time."""
    world.go_on(1)
    api.close()
    while world.answers:
        world.go_on(1, seconds=0.0)
    watchers = world.backend._watchers
    for name in ("jobs", "pods"):
        watchers[name].answered_at -= 3600 * (name != latest)
    world.add()
    job = world.until(lambda job: "has not answered since" in job.reason)
    assert render_moment(watchers[latest].answered_at, world.clock.now().timestamp()) in job.reason


def test_a_service_that_starts_without_the_api_server_starts_no_job(api: FakeApi, world: Supervised) -> None:
    api.close()
    world.add()
    world.go_on(2)
    assert (world.job().state, world.attempts()) == (JobState.QUEUED, [])
    assert "the Kubernetes API server has not answered since" in world.job().reason


# Pods that do not start.


def test_an_unknown_registry_is_shown_at_once_and_spends_the_launch_budget(api: FakeApi, world: Supervised) -> None:
    api.cluster.held = recorded_status("06-image-registry-unreachable", 2.0)
    world.add(supervise={"backoff_s": [5, 300]})
    began = world.clock.now()
    job = world.until(lambda job: "ErrImagePull" in job.reason)
    assert job.state is JobState.STARTING
    assert "its image cannot be pulled" in job.reason
    assert "lookup registry.example.invalid on 10.89.0.1:53: no such host" in job.reason
    ended = world.until(lambda job: job.state.terminal, seconds=10)
    assert ended.state is JobState.FAILED
    assert "no such host" in ended.reason
    assert ended.reason.endswith("the budget of 3 launch failures is spent")
    assert len(world.attempts()) == 4
    assert (world.clock.now() - began).total_seconds() < 25 * 60


def test_a_container_that_cannot_be_configured_is_shown_at_once(api: FakeApi, world: Supervised) -> None:
    waiting = {"reason": "CreateContainerConfigError", "message": 'secret "hub-token" not found'}
    api.cluster.held = {"phase": "Pending", "containerStatuses": [{"name": "agent", "state": {"waiting": waiting}}]}
    world.add()
    job = world.until(lambda job: "CreateContainerConfigError" in job.reason)
    assert 'secret "hub-token" not found' in job.reason
    assert len(world.attempts()) == 1


def test_an_unschedulable_job_waits_with_the_scheduler_s_message(api: FakeApi, world: Supervised) -> None:
    api.cluster.held = recorded_status("07-unschedulable-gpu", 2.0)
    world.add()
    world.until(lambda job: "2 Insufficient nvidia.com/gpu" in job.reason)
    world.go_on(100, seconds=60)
    assert (world.job().state, len(world.attempts())) == (JobState.STARTING, 1)
