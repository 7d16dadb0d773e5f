"""Which jobs may start, on how many nodes, and what the others wait for."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from orchestrator.domain.job.attempt import Attempt, AttemptState
from orchestrator.domain.job.job import Desired, Job, JobState
from orchestrator.domain.queueing.admission import (
    Admission,
    Contended,
    Limits,
    Quota,
    admit,
    claimant_of,
    dependencies_of,
)
from tests.unit.situations import a_job, a_spec, ago, an_attempt


@dataclass(frozen=True)
class Held:
    """A job with its newest attempt."""

    job: Job
    attempt: Attempt | None


def a_waiting_job(name: str, nodes: int | str, *, age: float = 0, **spec: Any) -> Job:
    return replace(a_job(JobState.QUEUED, spec=a_spec(topology={"nodes": nodes}, **spec)), id=name, created_at=ago(age))


def a_holder(nodes: int = 1, state: JobState = JobState.RUNNING, *, asked: str | None = None, **spec: Any) -> Held:
    job = replace(a_job(state, spec=a_spec(topology={"nodes": asked or nodes}, **spec)), id=f"holder-{nodes}")
    ended = AttemptState.LOST if state is JobState.RECOVERING else AttemptState.RUNNING
    return Held(job, an_attempt(ended, nodes=str(nodes), asked=asked or str(nodes)))


def judge(
    *jobs: Job | Held, slots: int | None = None, limits: Limits | None = None, states: Mapping[str, JobState] = {}
) -> dict[str, Admission]:
    claimants = [
        claimant_of(each.job, each.attempt) if isinstance(each, Held) else claimant_of(each, None) for each in jobs
    ]
    return admit(claimants, limits or Limits(slots=slots), dependencies=states)


def test_jobs_start_in_their_order_while_slots_last() -> None:
    verdicts = judge(a_waiting_job("late", 2, age=1), a_waiting_job("early", 2, age=2), slots=3)
    assert verdicts["early"].admitted
    assert verdicts["early"].nodes == 2
    assert not verdicts["late"].admitted
    assert verdicts["late"].sentence == "needs 2 slots; 1 of 3 is free"


def test_one_slot_and_one_device_are_singular() -> None:
    only = judge(a_waiting_job("only", 1), slots=1)["only"]
    assert only == Admission(True, "it takes 1 of 1 slot", 1)
    some = judge(a_waiting_job("some", 1), slots=4)["some"]
    assert some.sentence == "it takes 1 of 4 slots"
    waiting = judge(a_holder(1), a_waiting_job("waiting", 1), slots=1)["waiting"]
    assert waiting.sentence == "needs 1 slot; 0 of 1 are free"
    none = Limits(slots=9, quotas={"default": Quota(max_devices=0)})
    assert judge(a_waiting_job("banned", 1), limits=none)["banned"].sentence == (
        "needs 1 device, more than the 0 of project default; cancel it"
    )


def test_a_small_job_does_not_overtake_a_large_one() -> None:
    verdicts = judge(a_waiting_job("large", 4, age=2), a_waiting_job("small", 1, age=1), a_holder(), slots=4)
    assert not verdicts["large"].admitted
    assert verdicts["small"] == Admission(False, "waits behind large, which waits for slots", contended=Contended.SLOTS)


def test_a_higher_priority_goes_first() -> None:
    verdicts = judge(a_waiting_job("early", 2, age=9), a_waiting_job("urgent", 2, priority=5), slots=2)
    assert verdicts["urgent"].admitted
    assert not verdicts["early"].admitted


def test_a_job_between_attempts_keeps_its_place_and_goes_first() -> None:
    verdicts = judge(a_waiting_job("next", 1, priority=9), a_holder(2, JobState.RECOVERING), slots=2)
    assert verdicts["holder-2"] == Admission(True, "it takes 2 of 2 slots", 2)
    assert not verdicts["next"].admitted


def test_a_job_scaled_beyond_the_free_slots_waits_and_blocks_the_others() -> None:
    others = replace(a_holder(2), job=replace(a_holder(2).job, id="other"))
    verdicts = judge(a_holder(1, JobState.RECOVERING, asked="3"), a_waiting_job("next", 1), others, slots=4)
    assert verdicts["holder-1"] == Admission(
        False, "needs 3 slots; 2 of 4 are free", blocks=True, contended=Contended.SLOTS
    )
    assert not verdicts["next"].admitted


def test_a_job_between_attempts_sees_what_is_free_for_it_while_more_slots_are_held_than_exist() -> None:
    verdicts = judge(a_holder(4, JobState.RECOVERING, asked="2"), a_holder(1), slots=2)
    assert verdicts["holder-4"] == Admission(
        False, "needs 2 slots; 1 of 2 is free", blocks=True, contended=Contended.SLOTS
    )


def test_a_cancelled_or_suspended_job_keeps_no_nodes_between_attempts() -> None:
    kept = a_holder(2, JobState.RECOVERING)
    for request in (Desired(cancelled=True), Desired(suspended=True)):
        given_up = Held(replace(kept.job, desired=request), kept.attempt)
        assert judge(given_up, a_waiting_job("next", 2), slots=2)["next"].admitted


def test_a_live_attempt_of_a_cancelled_or_suspended_job_holds_its_nodes() -> None:
    running = a_holder(2)
    for request in (Desired(cancelled=True), Desired(suspended=True)):
        ending = Held(replace(running.job, desired=request), running.attempt)
        assert not judge(ending, a_waiting_job("next", 1), slots=2)["next"].admitted


def test_no_job_grows_into_the_nodes_that_another_keeps_between_attempts() -> None:
    urgent = a_holder(2, JobState.RECOVERING, asked="4", priority=9)
    keeper = Held(replace(a_holder(2, JobState.RECOVERING).job, id="keeper"), urgent.attempt)
    verdicts = judge(urgent, keeper, slots=4)
    assert verdicts["holder-2"] == Admission(
        False, "needs 4 slots; 2 of 4 are free", blocks=True, contended=Contended.SLOTS
    )
    assert verdicts["keeper"] == Admission(True, "it takes 2 of 4 slots", 2)


def test_of_jobs_that_keep_nodes_from_each_other_the_first_starts() -> None:
    urgent = a_holder(2, JobState.RECOVERING, asked="3", priority=9)
    other = Held(replace(a_holder(2, JobState.RECOVERING, asked="3").job, id="other"), urgent.attempt)
    verdicts = judge(other, urgent, a_waiting_job("next", 1), slots=4)
    assert verdicts["holder-2"] == Admission(True, "it takes 3 of 4 slots", 3)
    assert verdicts["other"] == Admission(
        False, "needs 3 slots; 1 of 4 is free", blocks=True, contended=Contended.SLOTS
    )
    assert not verdicts["next"].admitted


def test_nothing_is_free_for_a_job_while_others_hold_more_slots_than_exist() -> None:
    others = replace(a_holder(5), job=replace(a_holder(5).job, id="others"))
    verdicts = judge(a_holder(1, JobState.RECOVERING, asked="3"), others, slots=4)
    assert verdicts["holder-1"].sentence == "needs 3 slots; 0 of 4 are free"


def test_a_job_that_waits_between_attempts_keeps_its_nodes() -> None:
    """Together they keep three of six slots, a running job has two: the first needs six, the second could begin."""
    first = a_holder(1, JobState.RECOVERING, asked="6", priority=9)
    second = Held(replace(a_holder(2, JobState.RECOVERING, asked="4").job, id="second"), a_holder(2).attempt)
    verdicts = judge(first, second, replace(a_holder(2), job=replace(a_holder(2).job, id="running")), slots=6)
    assert verdicts["holder-1"] == Admission(
        False, "needs 6 slots; 4 of 6 are free", blocks=True, contended=Contended.SLOTS
    )
    assert verdicts["second"] == Admission(
        False, "needs 4 slots; 3 of 6 are free", blocks=True, contended=Contended.SLOTS
    )


@pytest.mark.parametrize("state", JobState)
def test_a_job_without_an_attempt_holds_nothing_and_does_not_grow(state: JobState) -> None:
    job = a_job(state, spec=a_spec(topology={"nodes": "2"}))
    assert claimant_of(job, None).held_devices(0) == 0
    assert job.id in judge(job, slots=4) or state not in (JobState.QUEUED, JobState.RECOVERING)


def test_a_job_that_does_not_run_yet_cannot_grow() -> None:
    assert judge(a_holder(1, JobState.STARTING, asked="1:4"), slots=4) == {}


def test_a_live_attempt_counts_with_the_size_that_it_was_given() -> None:
    smaller_next_time = a_holder(3, asked="1")
    assert claimant_of(smaller_next_time.job, smaller_next_time.attempt).held_devices(0) == 3
    assert not judge(smaller_next_time, a_waiting_job("next", 2), slots=4)["next"].admitted


def test_an_elastic_job_starts_on_the_free_nodes() -> None:
    verdicts = judge(a_holder(3), a_waiting_job("elastic", "1:4"), slots=5)
    assert verdicts["elastic"] == Admission(True, "it takes 2 of 5 slots (2 of up to 4 nodes)", 2)
    assert judge(a_holder(4), a_waiting_job("elastic", "2:4"), slots=5)["elastic"].nodes == 0


def test_a_running_elastic_job_may_grow_unless_another_job_waits() -> None:
    small = a_holder(1, asked="1:4")
    assert judge(small, slots=3)["holder-1"].nodes == 3
    assert judge(small, a_holder(2), slots=9)["holder-1"].nodes == 4
    assert "holder-1" not in judge(small, a_waiting_job("large", 3), slots=3)


def test_a_cluster_with_its_own_queue_admits_every_job() -> None:
    verdicts = judge(a_waiting_job("large", 500), a_holder(1, asked="1:4"), slots=None)
    assert verdicts["large"] == Admission(True, "the cluster queues it", 500)
    assert "holder-1" not in verdicts, "its free nodes are not known, so no job is stopped to grow"
    resized = a_holder(1, asked="1:4")
    wanted = Held(replace(resized.job, spec=a_spec(topology={"nodes": "2"})), resized.attempt)
    assert judge(wanted, slots=None)["holder-1"].nodes == 2


def test_a_job_that_can_never_fit_says_so_even_behind_a_job_that_waits() -> None:
    verdicts = judge(a_waiting_job("first", 4, age=2), a_waiting_job("large", 9, age=1), a_holder(), slots=4)
    assert verdicts["first"].blocks
    assert verdicts["large"] == Admission(False, "needs 9 slots, but the cluster has 4; scale or cancel it")


def test_a_job_with_one_node_larger_than_the_cluster_is_to_be_cancelled() -> None:
    spec = a_spec(topology={"nodes": "2", "workers_per_node": 5})
    wide = replace(a_waiting_job("wide", 2), spec=spec)
    assert judge(wide, slots=4)["wide"].sentence == "needs 10 slots, but the cluster has 4; cancel it"


def test_a_job_whose_node_exceeds_the_quota_is_to_be_cancelled_even_if_it_fits_the_cluster() -> None:
    limits = Limits(slots=1, quotas={"default": Quota(max_devices=0)})
    assert judge(a_waiting_job("job", 2), limits=limits)["job"].sentence == (
        "needs 2 slots, but the cluster has 1; cancel it"
    )


@pytest.mark.parametrize("limits", [Limits(), Limits(slots=9), Limits(quotas={"default": Quota(max_devices=1)})])
@pytest.mark.parametrize("state", [JobState.QUEUED, JobState.RECOVERING])
def test_a_job_with_a_worker_for_each_gpu_is_not_admitted_by_a_cluster_that_has_lost_its_gpus(
    limits: Limits, state: JobState
) -> None:
    job = replace(a_job(state, spec=a_spec(topology={"nodes": 1, "workers_per_node": "gpu"})), id="job")
    verdict = judge(job, a_waiting_job("next", 1), limits=limits)
    assert verdict["job"] == Admission(False, "needs GPUs, but the cluster has none; cancel it")
    assert verdict["next"].admitted


def test_a_job_that_can_never_fit_blocks_no_other() -> None:
    too_large = a_waiting_job("large", 9, age=2)
    verdicts = judge(too_large, a_waiting_job("small", 1), slots=4)
    assert verdicts["large"].sentence == "needs 9 slots, but the cluster has 4; scale or cancel it"
    assert verdicts["small"].admitted
    limits = Limits(slots=8, quotas={"default": Quota(max_devices=1)})
    scaled = a_holder(1, JobState.RECOVERING, asked="2")
    verdicts = judge(scaled, a_waiting_job("other", 1, project="other"), limits=limits)
    sentence = "needs 2 devices, more than the 1 of project default; scale or cancel it"
    assert verdicts["holder-1"] == Admission(False, sentence)
    assert verdicts["other"].admitted
    without_slots = replace(limits, slots=None)
    assert judge(scaled, limits=without_slots)["holder-1"] == Admission(False, sentence)


def test_a_job_between_attempts_that_is_too_large_says_so_and_blocks_no_other() -> None:
    verdicts = judge(a_holder(1, JobState.RECOVERING, asked="5"), a_waiting_job("next", 1), slots=4)
    assert verdicts["holder-1"] == Admission(False, "needs 5 slots, but the cluster has 4; scale or cancel it")
    assert verdicts["next"].admitted


def test_a_job_between_attempts_waits_for_devices_that_others_of_its_project_use() -> None:
    limits = Limits(slots=8, quotas={"default": Quota(max_devices=4)})
    verdicts = judge(a_holder(1, JobState.RECOVERING, asked="3"), a_holder(2), limits=limits)
    sentence = "needs 3 devices; project default uses 2 of its 4"
    assert verdicts["holder-1"] == Admission(False, sentence, contended=Contended.PROJECT)


def test_a_live_attempt_counts_with_the_width_that_it_was_started_with() -> None:
    wide = a_holder(1)
    attempt = an_attempt(nodes="1", workers_per_node=4)
    assert claimant_of(wide.job, attempt).held_devices(0) == 4
    assert not judge(Held(wide.job, attempt), a_waiting_job("next", 1), slots=4)["next"].admitted


def test_a_suspended_job_is_not_admitted() -> None:
    held_back = replace(a_waiting_job("held-back", 1), desired=Desired(suspended=True))
    assert "held-back" not in judge(held_back, slots=4)


def test_a_projects_quota_of_jobs_applies_to_that_project_only() -> None:
    limits = Limits(slots=9, quotas={"default": Quota(max_jobs=1)})
    own, other = a_waiting_job("own", 1, age=2), a_waiting_job("other", 1, project="other")
    verdicts = judge(a_holder(), own, other, limits=limits)
    assert verdicts["own"].sentence == "waits: project default runs 1 job; its limit is 1"
    assert verdicts["other"].admitted
    assert judge(own, other, limits=limits)["own"].admitted


def test_a_projects_quota_of_devices_counts_admissions_of_the_same_pass() -> None:
    limits = Limits(slots=9, quotas={"default": Quota(max_devices=3)})
    verdicts = judge(a_waiting_job("first", 2, age=2), a_waiting_job("second", 2), limits=limits)
    assert verdicts["first"].admitted
    assert verdicts["second"].sentence == "needs 2 devices; project default uses 2 of its 3"
    assert judge(a_waiting_job("elastic", "1:8"), limits=limits)["elastic"].nodes == 3
    never = judge(a_waiting_job("large", 4), limits=limits)["large"]
    assert never == Admission(False, "needs 4 devices, more than the 3 of project default; scale or cancel it")


def test_a_limit_of_jobs_on_the_cluster_applies_to_every_project() -> None:
    verdicts = judge(a_holder(), a_waiting_job("next", 1), limits=Limits(slots=9, max_jobs=1))
    assert verdicts["next"].sentence == "waits: the cluster runs 1 job; its limit is 1"
    assert judge(a_waiting_job("next", 1), limits=Limits(slots=9, max_jobs=1))["next"].admitted


def test_an_array_runs_as_many_members_at_a_time_as_its_sweep_says() -> None:
    def member(index: int, array: str = "lr-1", at_once: int | None = 2) -> Job:
        place = {"id": array, "index": index, "size": 4, "at_once": at_once}
        return a_waiting_job(f"{array}-{index}", 1, age=9 - index, array=place)

    verdicts = judge(*(member(index) for index in range(1, 5)), member(5, "other"), member(6, "free", None), slots=9)
    assert {job_id for job_id, verdict in verdicts.items() if verdict.admitted} == {
        "lr-1-1",
        "lr-1-2",
        "other-5",
        "free-6",
    }
    assert verdicts["lr-1-3"] == Admission(False, "waits: array lr-1 runs 2 jobs; its limit is 2")
    running = replace(a_holder(), job=replace(a_holder().job, spec=member(1).spec))
    assert judge(running, member(2), member(3), slots=9)["lr-1-2"].admitted
    assert not judge(running, member(2), member(3), slots=9)["lr-1-3"].admitted


def test_a_job_waits_for_its_dependencies_and_says_what_may_help() -> None:
    job = a_waiting_job("second", 1, after=["first"])
    sentences = {
        JobState.RUNNING: "waits for job first to succeed; it is RUNNING",
        JobState.FAILED: "waits for job first, which is FAILED; retry first or cancel this job",
    }
    for state, sentence in sentences.items():
        assert judge(job, slots=4, states={"first": state})["second"] == Admission(False, sentence)
    assert judge(job, slots=4, states={"first": JobState.SUCCEEDED})["second"].admitted
    assert judge(job, slots=4)["second"].sentence.startswith("waits for job first, which no longer exists")


def test_only_queued_jobs_have_dependencies() -> None:
    queued = a_waiting_job("second", 1, after=["first"])
    running = replace(queued, state=JobState.RUNNING, spec=a_spec(after=["other"]))
    assert dependencies_of(claimant_of(each, None) for each in (queued, running)) == {"first"}


@given(
    st.lists(
        st.tuples(st.integers(1, 4), st.integers(0, 3), st.integers(-2, 2), st.sampled_from(list(JobState))),
        max_size=12,
    ),
    st.integers(1, 8),
    st.sampled_from([None, 1, 3]),
)
def test_no_more_slots_are_given_than_exist(
    jobs: Sequence[tuple[int, int, int, JobState]], slots: int, quota: int | None
) -> None:
    everyone = []
    for index, (least, more, priority, state) in enumerate(jobs):
        spec = a_spec(topology={"nodes": f"{least}:{least + more}"}, priority=priority)
        job = replace(a_job(state, spec=spec), id=f"job-{index}")
        live = AttemptState.RUNNING if state in (JobState.RUNNING, JobState.STARTING) else AttemptState.LOST
        attempt = None if state is JobState.QUEUED else an_attempt(live, nodes=f"{least}:{least}")
        everyone.append(claimant_of(job, attempt))
    limits = Limits(slots=slots, quotas={"default": Quota(max_devices=quota)})
    verdicts = admit(everyone, limits)
    keeping = [each for each in everyone if not verdicts.get(each.id, Admission(False, "")).admitted]
    stuck = [each for each in keeping if each.id in verdicts and verdicts[each.id].blocks]
    kept = sum(each.held_nodes for each in keeping if each not in stuck)  # stuck jobs give way to the first of them
    given_now = sum(verdict.nodes for verdict in verdicts.values() if verdict.admitted)
    held_before = sum(each.held_nodes for each in everyone)
    assert kept + given_now <= max(slots, held_before)
    if quota is not None:
        assert kept + given_now <= max(quota, held_before)
    for each in everyone:
        verdict = verdicts.get(each.id)
        if verdict is not None and verdict.admitted:
            assert each.spec.topology.min_nodes <= verdict.nodes <= each.spec.topology.max_nodes
