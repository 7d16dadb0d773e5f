from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace

import pytest

from orchestrator.domain.errors import NotFound
from orchestrator.domain.job.job import Desired
from tests.builders import make_event, make_spec
from tests.contract.worlds import World, add_job
from tests.examples import examples


def test_a_request_with_an_outdated_number_is_not_written(world: World) -> None:
    add_job(world)
    assert world.jobs.record_request("job-1", Desired(number=1, cancelled=True), make_event("cancel.requested"))
    for number in (0, 1, 3):
        late = Desired(number=number, suspended=True)
        assert not world.jobs.record_request(
            "job-1", late, make_event("suspend.requested"), spec=make_spec(name="other")
        )
    job = world.jobs.get("job-1")
    assert (job.desired, job.spec.name) == (Desired(number=1, cancelled=True), "demo")
    assert [event.kind for event in world.events("job-1")] == ["job.submitted", "cancel.requested"]


def test_a_request_of_an_unknown_job_is_not_found(world: World) -> None:
    with pytest.raises(NotFound, match="job-9"):
        world.jobs.record_request("job-9", Desired(number=1), make_event())


def test_no_concurrent_request_is_lost(world: World) -> None:
    add_job(world)
    callers = 2 if world.threads else 1
    times = examples(50, 400) // callers

    def request(_: int) -> None:
        for _ in range(times):
            written = False
            while not written:
                seen = world.jobs.get("job-1").desired
                mine = replace(seen, number=seen.number + 1, snapshot_number=seen.snapshot_number + 1)
                written = world.jobs.record_request("job-1", mine, make_event("snapshot.requested"))

    with ThreadPoolExecutor(2) as threads:
        list(threads.map(request, range(callers)))
    desired = world.jobs.get("job-1").desired
    assert (desired.number, desired.snapshot_number) == (callers * times, callers * times)
    assert len(world.events("job-1")) == callers * times + 1
