"""What an elastic job with fewer nodes than it may have waits for."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from orchestrator.domain.explanation.growth import Shrunken, is_shrunken, tell_growth
from orchestrator.domain.job.job import Desired, Job, JobState
from orchestrator.domain.observation.observation import Training
from orchestrator.domain.queueing.admission import Claimant, Limits, Quota, claimant_of
from orchestrator.domain.queueing.waiting import ClusterQueue
from tests.unit.situations import NOW, a_job, a_spec, ago, an_attempt

THREE = Limits(slots=3)
SMALL = an_attempt(nodes="1", asked="1:3")


def elastic(state: JobState = JobState.RUNNING, **supervise: Any) -> Job:
    return a_job(state, spec=a_spec(topology={"nodes": "1:3"}, supervise=supervise))


def growth_of(
    *waiting: Claimant, job: Job | None = None, limits: Limits = THREE, training: Training | None = None
) -> str:
    job, training = job or elastic(), training or Training(snapshots=1, resized_at=ago(60))
    shrunken = Shrunken(job=job, attempt=SMALL, training=training, nodes=1)
    line = ClusterQueue(claimants=[claimant_of(job, SMALL), *waiting], limits=limits)
    return tell_growth(shrunken, line, NOW)


def waiting(name: str, **spec: Any) -> Claimant:
    return claimant_of(replace(a_job(JobState.QUEUED, spec=a_spec(topology={"nodes": 3}, **spec)), id=name), None)


def test_a_job_that_waits_for_slots_stops_growth_and_is_named_within_its_project() -> None:
    begin = "It grows back when no other job waits for slots."
    assert growth_of(waiting("large")) == f"{begin} large waits now."
    assert growth_of(waiting("large"), waiting("second")) == f"{begin} large and 1 other job wait now."
    secret = waiting("secret", project="research")
    assert growth_of(secret) == f"{begin} 1 job of other projects waits now."
    assert growth_of(secret, waiting("mine")) == f"{begin} mine and 1 other job wait now."


def test_a_job_that_waits_for_a_quota_or_another_job_does_not_stop_growth() -> None:
    after, over_quota = waiting("later", after=["other"]), waiting("rich", project="research")
    limits = Limits(slots=3, quotas={"research": Quota(max_jobs=0)})
    told = growth_of(waiting("large"), after, over_quota, limits=limits)
    assert told.endswith(" large waits now.")


def test_growth_needs_free_slots() -> None:
    other = claimant_of(a_job(JobState.RUNNING), an_attempt(nodes="2", asked="2"))
    assert growth_of(other) == "It grows back when the slots of another node are free."


def test_a_job_that_fills_the_cluster_or_its_quota_cannot_grow() -> None:
    full = growth_of(limits=Limits(slots=1))
    assert full == "It cannot grow: 2 nodes need 2 slots, and the cluster has 1."
    quota = {"default": Quota(max_devices=1)}
    assert growth_of(limits=Limits(slots=9, quotas=quota)) == (
        "It cannot grow: 2 nodes need 2 devices, and project default has 1."
    )


def test_growth_needs_devices_of_the_quota() -> None:
    other = claimant_of(a_job(JobState.RUNNING), an_attempt(nodes="2", asked="2"))
    assert growth_of(other, limits=Limits(slots=9, quotas={"default": Quota(max_devices=3)})) == (
        "It grows back when the slots of another node are free and project default may use them."
    )


def test_growth_needs_a_snapshot_and_then_the_pause() -> None:
    assert growth_of(training=Training()) == "It grows back to 3 nodes once it has taken a snapshot."
    assert growth_of(limits=Limits(slots=2)) == "It grows back to 2 nodes in about 9 min, after a snapshot."
    restored, soon = Training(restored="step-1"), elastic(grow_back_after_s=60)
    assert growth_of(job=soon, training=restored) == "It grows back to 3 nodes now."


def test_a_job_that_never_grows_says_so() -> None:
    never = elastic(grow_back_after_s=None)
    assert growth_of(job=never) == "It does not grow back, because supervise.grow_back_after_s is null."


@pytest.mark.parametrize(
    ("job", "asked"),
    [
        (elastic(JobState.RECOVERING), "1:3"),
        (replace(elastic(), desired=Desired(suspended=True)), "1:3"),
        (replace(elastic(), desired=Desired(cancelled=True)), "1:3"),
        (elastic(), "1:2"),
        (a_job(spec=a_spec(topology={"nodes": 3})), "3"),
    ],
)
def test_a_job_that_cannot_grow_is_not_shrunken(job: Job, asked: str) -> None:
    assert is_shrunken(elastic(), SMALL, 1)
    assert not is_shrunken(elastic(), SMALL, 3)
    assert not is_shrunken(job, replace(SMALL, asked=asked), 1)
