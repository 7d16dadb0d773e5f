"""What a queued job waits for, and when it starts at the latest."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from datetime import datetime, timedelta

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from orchestrator.domain.job.job import JobState
from orchestrator.domain.queueing.admission import Claimant, Limits, Quota, admit, claimant_of
from orchestrator.domain.queueing.waiting import ClusterQueue, QueueWait, find_queue_wait, tell_queue_wait
from tests.builders import NOW
from tests.examples import examples
from tests.unit.situations import a_job, a_spec, ago, an_attempt


def holding(name: str, nodes: int = 1, state: JobState = JobState.RUNNING, **spec: object) -> Claimant:
    job = replace(a_job(state, spec=a_spec(topology={"nodes": nodes}, **spec)), id=name)
    return claimant_of(job, an_attempt(nodes=str(nodes)))


def queued(name: str, nodes: int | str = 1, *, age: float = 0, **spec: object) -> Claimant:
    job = a_job(JobState.QUEUED, spec=a_spec(topology={"nodes": nodes}, **spec))
    return claimant_of(replace(job, id=name, created_at=ago(age)), None)


def after(seconds: float) -> datetime:
    return NOW + timedelta(seconds=seconds)


def wait_of(
    job: Claimant,
    *others: Claimant,
    limits: Limits = Limits(slots=2),  # noqa: B008
    ends: Mapping[str, float] = {},
) -> QueueWait | None:
    ends_by = {name: after(seconds) for name, seconds in ends.items()}
    return find_queue_wait(ClusterQueue(claimants=[job, *others], limits=limits, ends_by=ends_by), job)


def names(jobs: QueueWait | None) -> list[str]:
    assert jobs is not None
    return [each.job.id for each in jobs.holders]


def test_a_job_that_waits_for_slots_names_the_jobs_that_hold_them() -> None:
    wait = wait_of(queued("mine", 2), holding("small"), holding("large", 3), limits=Limits(slots=4))
    assert wait is not None
    assert [(each.job.id, each.devices) for each in wait.holders] == [("large", 3), ("small", 1)]
    assert (wait.ahead, wait.starts_by) == (0, None)
    assert tell_queue_wait(wait, NOW) == []


def test_a_job_starts_once_enough_known_ends_have_freed_its_slots() -> None:
    mine, ends = queued("mine", 2), {"one": 500.0, "two": 900.0}
    wait = wait_of(mine, holding("one"), holding("two"), ends=ends)
    assert wait is not None
    assert wait.starts_by == after(900)
    assert tell_queue_wait(wait, NOW) == ["It starts within about 15 min if no job ahead of it slows down or fails."]
    overdue = replace(wait, starts_by=NOW)
    assert tell_queue_wait(overdue, NOW) == ["It starts within about 1 s if no job ahead of it slows down or fails."]
    alone = wait_of(queued("mine"), holding("one"), holding("two"), ends={"one": 500.0})
    assert alone is not None
    assert alone.starts_by == after(500)


def test_there_is_no_estimate_without_enough_known_ends() -> None:
    for ends in ({}, {"one": 500.0}):
        wait = wait_of(queued("mine", 2), holding("one"), holding("two"), ends=ends)
        assert wait is not None
        assert wait.starts_by is None


def test_jobs_ahead_take_the_slots_first_at_their_full_size() -> None:
    first = queued("first", "1:2", age=50)
    wait = wait_of(queued("mine"), first, holding("one", 2), ends={"one": 60.0})
    assert wait is not None
    assert (wait.ahead, wait.starts_by) == (1, None)
    assert tell_queue_wait(wait, NOW) == ["1 job starts before it."]
    room = wait_of(queued("mine"), first, holding("one", 3), ends={"one": 60.0}, limits=Limits(slots=3))
    assert room is not None
    assert room.starts_by == after(60)


def test_a_job_that_fits_or_waits_for_another_job_or_can_never_start_waits_for_nothing_that_others_hold() -> None:
    assert wait_of(queued("mine"), holding("one")) is None
    assert wait_of(queued("mine", after=["one"]), holding("one", 2)) is None
    assert wait_of(queued("mine", 3), holding("one")) is None
    assert wait_of(holding("mine"), holding("one")) is None
    assert wait_of(replace(queued("mine", 2), state=JobState.RECOVERING), holding("one", 2)) is None
    assert wait_of(replace(queued("mine"), suspended=True), holding("one", 2)) is None


def test_a_quota_is_held_by_the_jobs_of_its_project() -> None:
    limits = Limits(slots=9, quotas={"default": Quota(max_jobs=1)})
    line = [holding("one"), holding("other", project="research"), queued("first", age=9)]
    wait = wait_of(queued("mine"), *line, limits=limits, ends={"one": 5.0})
    assert names(wait) == ["one"]
    assert wait is not None
    assert (wait.ahead, wait.starts_by) == (1, None)


def test_the_limit_of_the_cluster_is_held_by_all_its_jobs() -> None:
    line = [holding("one"), holding("other", project="research")]
    assert names(wait_of(queued("mine"), *line, limits=Limits(slots=9, max_jobs=2))) == ["one", "other"]


def test_there_is_no_estimate_if_a_job_ahead_may_use_up_the_quota() -> None:
    limits = Limits(slots=2, quotas={"default": Quota(max_jobs=3)})
    wait = wait_of(queued("mine"), queued("first", age=9), holding("one", 2), limits=limits, ends={"one": 5.0})
    assert wait is not None
    assert wait.starts_by is None
    alone = wait_of(queued("mine"), holding("one", 2), limits=limits, ends={"one": 5.0})
    assert alone is not None
    assert alone.starts_by == after(5)


@pytest.mark.parametrize(("max_jobs", "starts_by"), [(2, None), (3, after(5))])
def test_there_is_no_estimate_if_jobs_ahead_may_use_up_the_limit_of_the_cluster(
    max_jobs: int, starts_by: datetime | None
) -> None:
    limits = Limits(slots=2, max_jobs=max_jobs)
    wait = wait_of(queued("mine"), queued("first", age=9), holding("one", 2), limits=limits, ends={"one": 5.0})
    assert wait is not None
    assert wait.starts_by == starts_by


def test_there_is_no_estimate_for_a_member_of_an_array_behind_others() -> None:
    place = {"id": "lr-1", "index": 2, "size": 4, "at_once": 2}
    line = [queued("first", age=9), holding("one", 2)]
    wait = wait_of(queued("mine", array=place), *line, ends={"one": 5.0})
    assert wait is not None
    assert wait.starts_by is None
    plain = wait_of(queued("mine"), *line, ends={"one": 5.0})
    assert plain is not None
    assert plain.starts_by is not None


SIZES = st.integers(1, 3)


@st.composite
def lines(draw: st.DrawFn) -> tuple[ClusterQueue, Claimant]:
    held = [holding(f"held-{number}", size) for number, size in enumerate(draw(st.lists(SIZES, max_size=4)))]
    sizes = draw(st.lists(st.tuples(SIZES, SIZES, st.integers(0, 2)), min_size=1, max_size=4))
    waiting = [
        queued(f"waits-{number}", f"{min(a, b)}:{max(a, b)}", age=10 - number, priority=priority)
        for number, (a, b, priority) in enumerate(sizes)
    ]
    slots = max(1, sum(each.held_devices(0) for each in held)) + draw(st.integers(0, 2))
    ends = {each.id: after(draw(st.integers(1, 99))) for each in held if draw(st.booleans())}
    line = ClusterQueue(claimants=[*held, *waiting], limits=Limits(slots=slots), ends_by=ends)
    return line, draw(st.sampled_from(waiting))


@settings(max_examples=examples(200, 5000))
@given(lines())
def test_the_job_is_admitted_at_the_time_that_was_derived(drawn: tuple[ClusterQueue, Claimant]) -> None:
    line, job = drawn
    wait = find_queue_wait(line, job)
    if wait is None or wait.starts_by is None:
        return
    left = [each for each in line.claimants if not line.ends_by.get(each.id, after(10**6)) <= wait.starts_by]
    assert admit(left, line.limits)[job.id].admitted
