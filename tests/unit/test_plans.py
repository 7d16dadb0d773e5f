"""Plans of a spec, of a spec compared with a job, and of a launched job."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from orchestrator.commands.checks import Checks
from orchestrator.commands.plans import Plans
from orchestrator.configured_cluster import Cluster
from orchestrator.domain.access.identity import Principal, Role
from orchestrator.domain.errors import InvalidSpec, NotFound
from orchestrator.domain.job.attempt import Attempt, AttemptState
from orchestrator.domain.job.job import Job
from orchestrator.domain.job.launch_plan import build_plan
from orchestrator.domain.specs.spec import JobSpec
from orchestrator.simulator.memory_store import MemoryStore
from orchestrator.simulator.virtual_clock import VirtualClock
from tests.builders import make_attempt, make_event, make_job, make_site, make_spec
from tests.fakes.cluster import FakeCluster

STRANGER = Principal(name="eve", grants={"vision": Role.ADMIN})


class Desk:
    """Plans on two equal clusters."""

    def __init__(self, root: Path) -> None:
        self.store, clock = MemoryStore(), VirtualClock()
        here = Cluster(
            name="local",
            kind="local",
            backend=FakeCluster(clock, slots=4),
            job_root=root,
            plan=lambda job, attempt: build_plan(job, attempt, make_site()),
            ports=range(20000, 20010),
            gpus=0,
        )
        clusters = {"local": here, "other": replace(here, name="other")}
        self.plans = Plans(self.store, Checks(jobs=self.store, clusters=clusters))

    def add(self, job_id: str = "job-1", **fields: object) -> Job:
        job = make_job(job_id, spec=a_spec(**fields))
        return self.store.add(job, idempotency_key=None, digest="", event=make_event())

    def start(self, attempt: Attempt) -> None:
        self.store.tables.put_attempt(attempt)


@pytest.fixture
def desk(tmp_path: Path) -> Desk:
    return Desk(tmp_path)


def a_spec(**fields: object) -> JobSpec:
    return make_spec(run={"command": ["true"], "workdir": "/"}, **fields)


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
    desk.start(make_attempt(port=20007, state=AttemptState.RUNNING))
    assert desk.plans.launch(job.id).rendezvous_endpoint.endswith(":20007")
