"""Plans of a spec, of a spec compared with a job, and of a launched job."""

from __future__ import annotations

from pathlib import Path

import pytest

from orchestrator.domain.errors import InvalidSpec, NotFound
from tests.unit.desk import STRANGER, Desk, a_spec


@pytest.fixture
def desk(tmp_path: Path) -> Desk:
    return Desk(tmp_path)


def test_a_plan_of_a_spec_stores_nothing(desk: Desk) -> None:
    planned = desk.plans.plan(a_spec())
    assert planned.against is None
    assert planned.replicas[0].command[-1] == "true"
    assert not desk.store.tables.jobs


def test_a_plan_can_be_compared_with_a_job_of_the_same_cluster(desk: Desk) -> None:
    job = desk.add()
    against = desk.plans.plan(a_spec(priority=7), against=job.id).against
    assert against is not None
    assert (against.job, any("priority" in line for line in against.spec_changes)) == (job.id, True)
    with pytest.raises(InvalidSpec) as error:
        desk.plans.plan(a_spec(cluster="other"), against=job.id)
    assert [problem.pointer for problem in error.value.problems] == ["/cluster"]
    with pytest.raises(NotFound):
        desk.plans.plan(a_spec(), against="absent")


def test_a_plan_cannot_use_what_its_caller_may_not_see(desk: Desk) -> None:
    spec = a_spec(project="vision", after=[desk.add().id])
    assert desk.plans.plan(spec)
    with pytest.raises(InvalidSpec, match="there is no job job-1"):
        desk.plans.acting(STRANGER).plan(spec)


def test_the_launch_of_a_job_is_that_of_its_newest_attempt_or_a_draft(desk: Desk) -> None:
    job = desk.add()
    assert desk.plans.launch(job.id).rendezvous_endpoint.endswith(":20000")
    desk.start(port=20007)
    assert desk.plans.launch(job.id).rendezvous_endpoint.endswith(":20007")
