"""Submissions and requests on a store in memory: what is written, what is refused, and what is said twice."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from orchestrator.commands.checks import Checks
from orchestrator.commands.job_commands import Commands
from orchestrator.configured_cluster import Cluster
from orchestrator.domain.access.identity import Principal, Role
from orchestrator.domain.errors import Conflict, FieldProblem, InvalidSpec
from orchestrator.domain.job.attempt import AttemptState
from orchestrator.domain.job.job import Desired, Job, JobState
from orchestrator.domain.specs.spec import JobSpec
from orchestrator.simulator.memory_store import MemoryStore
from orchestrator.simulator.virtual_clock import VirtualClock
from orchestrator.wire.job_requests import RetryRequest
from tests.builders import make_attempt, make_event, make_job, make_spec
from tests.examples import examples
from tests.fakes.cluster import FakeCluster
from trainer.contract import layout

SNAPSHOT = "step-00000120-a1-g1"


class Desk:
    """Commands over one cluster of four slots, and the hands of those that work behind them."""

    def __init__(self, root: Path) -> None:
        self.store, clock, self.woken = MemoryStore(), VirtualClock(), 0
        self.cluster = Cluster(
            name="local",
            kind="local",
            backend=FakeCluster(clock, slots=4),
            job_root=root,
            plan=lambda job, attempt: pytest.fail("nothing is planned"),
            ports=range(20000, 20010),
            gpus=0,
        )
        checks = Checks(jobs=self.store, clusters={"local": self.cluster}, webhooks=("pager", "audit"))
        self.commands = Commands(self.store, self.store, checks, clock, self._wake)

    def _wake(self) -> None:
        self.woken += 1

    def add(self, job_id: str = "job-1", **fields: Any) -> Job:
        spec = make_spec(**{"run": {"command": ["true"], "workdir": "/"}, **fields.pop("spec", {})})
        job = make_job(job_id, spec=spec, **fields)
        return self.store.add(job, idempotency_key=None, digest="", event=make_event())

    def start(self, state: AttemptState = AttemptState.RUNNING, **fields: Any) -> None:
        self.store.tables.put_attempt(make_attempt(state=state, **fields))

    def requests(self) -> int:
        return len(self.store.tables.events) - len(self.store.tables.jobs)


@pytest.fixture
def desk(tmp_path: Path) -> Desk:
    return Desk(tmp_path)


def problems(error: pytest.ExceptionInfo[InvalidSpec]) -> list[str]:
    return [problem.pointer for problem in error.value.problems]


def a_spec(**fields: Any) -> JobSpec:
    return make_spec(run={"command": ["true"], "workdir": "/"}, **fields)


def test_a_submission_that_is_repeated_is_answered_though_it_could_not_be_made_again(desk: Desk) -> None:
    first, is_new = desk.commands.submit(a_spec(after=[desk.add().id]), "key")
    assert is_new
    del desk.store.tables.jobs["job-1"]
    again, is_new = desk.commands.submit(first.spec, "key")
    assert (again.id, is_new, desk.woken) == (first.id, False, 1)


CALLERS = ("alice", "bob", "carol")
SUBMISSIONS = st.tuples(
    st.sampled_from(CALLERS), st.sampled_from(["red", "blue"]), st.sampled_from(["k1", "k2"]), st.integers(0, 1)
)


@settings(max_examples=examples(25, 200), deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(submissions=st.lists(SUBMISSIONS, max_size=12))
def test_a_key_means_what_its_caller_meant_whatever_others_submit(
    tmp_path: Path, submissions: list[tuple[str, str, str, int]]
) -> None:
    """Caller by caller and project by project, the answers are those of a service that has no other."""
    desk = Desk(tmp_path)
    first: dict[tuple[str, str, str], tuple[str, int]] = {}
    for caller, project, key, priority in submissions:
        commands = desk.commands.acting(Principal(name=caller, grants={"*": Role.SUBMITTER}))
        known = first.get((caller, project, key))
        if known is not None and known[1] != priority:
            with pytest.raises(Conflict, match=known[0]):
                commands.submit(a_spec(project=project, priority=priority), key)
            continue
        job, is_new = commands.submit(a_spec(project=project, priority=priority), key)
        assert (is_new, job.owner) == (known is None, caller)
        assert first.setdefault((caller, project, key), (job.id, priority))[0] == job.id
    assert len(desk.store.tables.jobs) == len(first)


def test_what_a_submission_names_has_to_be_there(desk: Desk) -> None:
    with pytest.raises(InvalidSpec) as error:
        desk.commands.submit(a_spec(after=["nobody"]), None)
    assert problems(error) == ["/after/0"]
    with pytest.raises(InvalidSpec) as error:
        desk.commands.submit(a_spec(notify=["pager", "nobody"]), None)
    assert list(error.value.problems) == [
        FieldProblem("/notify/1", "there is no webhook 'nobody'; known: audit, pager"),
    ]
    assert desk.store.tables.jobs == {}


@pytest.mark.parametrize("end", [JobState.SUCCEEDED, JobState.FAILED, JobState.CANCELLED])
def test_an_ended_job_is_not_scaled(desk: Desk, end: JobState) -> None:
    desk.add(state=end)
    with pytest.raises(Conflict, match=f"has ended {end}; retry it with a patch"):
        desk.commands.scale("job-1", "2")


def test_the_size_that_a_job_has_is_requested_already(desk: Desk) -> None:
    job = desk.add(state=JobState.RUNNING)
    assert desk.commands.scale("job-1", job.spec.topology.nodes) == job
    assert (desk.requests(), desk.woken) == (0, 0)
    assert desk.commands.scale("job-1", "2").spec.topology.nodes == "2"
    assert (desk.requests(), desk.woken) == (1, 1)


def test_a_wrong_size_is_refused_by_the_requests_own_field(desk: Desk) -> None:
    desk.add(state=JobState.RUNNING)
    with pytest.raises(InvalidSpec) as error:
        desk.commands.scale("job-1", "9")
    assert problems(error) == ["/nodes"]


def test_a_snapshot_is_taken_of_a_running_attempt_only(desk: Desk) -> None:
    desk.add(state=JobState.STARTING)
    with pytest.raises(Conflict, match="no attempt is running"):
        desk.commands.snapshot("job-1")
    for state in (AttemptState.SUBMITTED, AttemptState.LOST):
        desk.start(state)
        with pytest.raises(Conflict, match="no attempt is running"):
            desk.commands.snapshot("job-1")
    desk.start(snapshots_told=0)
    assert desk.commands.snapshot("job-1").desired == Desired(number=1, snapshot_number=1)
    assert desk.commands.snapshot("job-1").desired == Desired(number=1, snapshot_number=1)
    assert (desk.requests(), desk.woken) == (1, 1)


def test_a_request_that_another_one_overtook_is_decided_again(desk: Desk) -> None:
    desk.add(state=JobState.RUNNING)
    request, overtaken = desk.store.record_request, []

    def overtake(job_id: str, desired: Desired, *rest: Any, **fields: Any) -> bool:
        if not overtaken:
            overtaken.append(request(job_id, Desired(number=1, snapshot_number=7), make_event()))
        return request(job_id, desired, *rest, **fields)

    desk.store.record_request = overtake  # type: ignore[method-assign]
    assert desk.commands.suspend("job-1").desired == Desired(number=2, snapshot_number=7, suspended=True)
    assert (desk.requests(), desk.woken) == (2, 1)


# Retries


def test_a_job_that_is_being_cancelled_is_retried_once_it_has_ended(desk: Desk) -> None:
    cancelled = Desired(number=1, cancelled=True, suspended=True)
    desk.add(state=JobState.RUNNING, desired=cancelled)
    with pytest.raises(Conflict, match="is being cancelled; retry it when it has ended"):
        desk.commands.retry("job-1", RetryRequest())
    desk.add("job-2", state=JobState.CANCELLED, desired=cancelled)
    assert desk.commands.retry("job-2", RetryRequest()).desired == Desired(number=2, retry_number=1)
    desk.add("job-3", state=JobState.RUNNING)
    assert desk.commands.retry("job-3", RetryRequest()).desired == Desired(number=1, retry_number=1)


def commit(desk: Desk, name: str = SNAPSHOT) -> None:
    folder = desk.cluster.job_dir("job-1") / "snapshots" / name
    folder.mkdir(parents=True)
    (folder / layout.MANIFEST).write_text("{}")


def test_the_same_retry_is_requested_once_and_another_one_has_to_wait(desk: Desk) -> None:
    desk.add(state=JobState.FAILED)
    commit(desk)
    commit(desk, "step-00000240-a1-g1")
    terms = RetryRequest(restore_from=SNAPSHOT, patch={"priority": 3})
    requested = desk.commands.retry("job-1", terms)
    assert requested.desired == Desired(number=1, retry_number=1, restore_from=SNAPSHOT)
    assert desk.commands.retry("job-1", terms) == requested
    for other in (
        replace_terms(terms, restore_from="step-00000240-a1-g1"),
        replace_terms(terms, restore_from=None),
        replace_terms(terms, patch={"priority": 4}),
    ):
        with pytest.raises(Conflict, match="a different retry that has not started yet"):
            desk.commands.retry("job-1", other)
    assert desk.requests() == 1


def replace_terms(terms: RetryRequest, **fields: Any) -> RetryRequest:
    return terms.model_copy(update=fields)


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("../../etc", "must be a snapshot's name"),
        ("step-00000999-a1-g1", "has no committed snapshot"),
    ],
)
def test_a_retry_goes_on_from_a_committed_snapshot_only(desk: Desk, name: str, message: str) -> None:
    desk.add(state=JobState.FAILED)
    commit(desk)
    with pytest.raises(InvalidSpec, match=message) as error:
        desk.commands.retry("job-1", RetryRequest(restore_from=name))
    assert problems(error) == ["/restore_from"]


def test_a_snapshot_is_looked_for_where_the_retry_will_look(desk: Desk, tmp_path: Path) -> None:
    desk.add(state=JobState.FAILED)
    commit(desk)
    elsewhere = RetryRequest(restore_from=SNAPSHOT, patch={"snapshot": {"dir": str(tmp_path / "elsewhere")}})
    with pytest.raises(InvalidSpec, match="has no committed snapshot"):
        desk.commands.retry("job-1", elsewhere)
    moved = tmp_path / "elsewhere/job-1" / SNAPSHOT / "MANIFEST.json"
    moved.parent.mkdir(parents=True)
    moved.touch()
    assert desk.commands.retry("job-1", elsewhere).desired.restore_from == SNAPSHOT


def test_what_a_job_is_filed_by_does_not_change_in_a_retry(desk: Desk) -> None:
    desk.add(state=JobState.FAILED)
    with pytest.raises(InvalidSpec) as error:
        desk.commands.retry("job-1", RetryRequest(patch={"name": "demo", "project": "other"}))
    assert problems(error) == ["/patch/project"]


def test_a_retry_without_a_patch_takes_the_spec_as_it_is_though_it_would_be_refused_now(desk: Desk) -> None:
    gone = {"run": {"command": ["true"], "workdir": "/no/such/folder"}}
    desk.add(state=JobState.FAILED, spec=gone)
    assert desk.commands.retry("job-1", RetryRequest()).desired.retry_number == 1
    with pytest.raises(InvalidSpec) as error:
        desk.commands.retry("job-1", RetryRequest(patch={"priority": 1}))
    assert problems(error) == ["/patch/run/workdir"]


def test_a_patch_keeps_a_webhook_that_the_configuration_lost(desk: Desk) -> None:
    desk.add(state=JobState.FAILED, spec={"notify": ["lost"]})
    patched = desk.commands.retry("job-1", RetryRequest(patch={"priority": 1}))
    assert patched.spec.notify == desk.store.get("job-1").spec.notify
    with pytest.raises(InvalidSpec) as error:
        desk.commands.retry("job-1", RetryRequest(patch={"notify": ["lost", "nobody"]}))
    assert problems(error) == ["/patch/notify/1"]


def test_no_ring_of_jobs_that_wait_for_each_other_can_be_made(desk: Desk) -> None:
    desk.add("job-1", state=JobState.FAILED)
    desk.add("job-2", spec={"after": ["job-1"]})
    desk.add("job-3", spec={"after": ["job-2", "job-gone"]})
    for after in ("job-1", "job-2", "job-3"):
        with pytest.raises(InvalidSpec, match=f"job {after} waits for this one") as error:
            desk.commands.retry("job-1", RetryRequest(patch={"after": [after]}))
        assert problems(error) == ["/patch/after/0"]
    desk.add("job-4")
    assert desk.commands.retry("job-1", RetryRequest(patch={"after": ["job-4"]})).spec.after == ("job-4",)


def test_a_submission_shows_the_fields_of_its_own_document(desk: Desk) -> None:
    with pytest.raises(InvalidSpec) as error:
        desk.commands.submit(replace_spec(a_spec(), "/no/such/folder"), None)
    assert problems(error) == ["/run/workdir"]


def replace_spec(spec: JobSpec, workdir: str) -> JobSpec:
    return spec.model_copy(update={"run": spec.run.model_copy(update={"workdir": workdir})})


def test_a_retry_of_one_that_began_meanwhile_is_a_new_one(desk: Desk) -> None:
    desk.add(state=JobState.FAILED)
    desk.commands.retry("job-1", RetryRequest())
    begun = replace(desk.store.get("job-1"), retries_done=1)
    desk.store.tables.put_job(begun)
    assert desk.commands.retry("job-1", RetryRequest(patch={"priority": 1})).desired.retry_number == 2


STRANGER = Principal(name="eve", grants={"vision": Role.ADMIN})


def test_what_a_caller_may_not_see_is_nothing_to_wait_for(desk: Desk) -> None:
    waited_for = desk.add().id
    theirs = desk.commands.acting(STRANGER)
    with pytest.raises(InvalidSpec) as error:
        theirs.submit(a_spec(project="vision", after=[waited_for]), None)
    assert [problem.message for problem in error.value.problems] == [f"there is no job {waited_for}"]
    assert desk.commands.submit(a_spec(project="vision", after=[waited_for]), None)[1]


def test_what_an_accepted_job_waits_for_stays_whoever_changes_it(desk: Desk) -> None:
    waited_for = desk.add().id
    mine = desk.add("job-2", spec={"project": "vision", "after": [waited_for], "topology": {"nodes": "1"}})
    assert desk.commands.acting(STRANGER).scale(mine.id, "2").spec.topology.nodes == "2"


def test_secrets_are_asked_for_where_a_job_names_some_and_have_to_be_there(desk: Desk) -> None:
    asked: list[str] = []

    def stored(project: str) -> tuple[str, ...]:
        asked.append(project)
        return ("THERE",)

    checks = Checks(jobs=desk.store, clusters={"local": desk.cluster}, secrets=stored)
    commands = Commands(desk.store, desk.store, checks, VirtualClock(), lambda: None)
    run = {"command": ["true"], "workdir": "/"}
    commands.submit(make_spec(run=run), None)
    assert asked == []
    commands.submit(make_spec(run={**run, "secrets": ["THERE"]}), None)
    with pytest.raises(InvalidSpec) as error:
        commands.submit(make_spec(run={**run, "secrets": ["THERE", "ABSENT"]}), None)
    assert problems(error) == ["/run/secrets/1"]
    assert asked == ["default", "default"]


def test_snapshots_lead_to_no_place_behind_the_service_s_walls(desk: Desk) -> None:
    desk.commands.submit(a_spec(snapshot={"dir": "s3://bucket/x"}), None)
    with pytest.raises(InvalidSpec) as error:
        desk.commands.submit(a_spec(snapshot={"dir": "http://127.0.0.1:8700/x"}), None)
    assert problems(error) == ["/snapshot/dir"]
