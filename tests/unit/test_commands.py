"""Submissions and requests on a store in memory: what is written, refused, or changes nothing."""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, cast

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from orchestrator.commands.checks import Checks
from orchestrator.commands.job_commands import Commands
from orchestrator.domain.access.identity import Principal, Role
from orchestrator.domain.errors import Conflict, FieldProblem, InvalidSpec
from orchestrator.domain.job.attempt import AttemptState
from orchestrator.domain.job.job import Desired, JobState
from orchestrator.domain.specs.spec import ARRAY_LABEL
from orchestrator.domain.specs.sweep import parse_array
from orchestrator.simulator.virtual_clock import VirtualClock
from orchestrator.store.history_reader import HistoryReader
from orchestrator.wire.job_requests import RetryRequest
from tests.builders import make_event
from tests.examples import examples
from tests.unit.desk import STRANGER, Desk, a_spec
from trainer.contract import layout

SNAPSHOT = "step-00000120-a1-g1"


@pytest.fixture
def desk(tmp_path: Path) -> Desk:
    return Desk(tmp_path)


def problems(error: pytest.ExceptionInfo[InvalidSpec]) -> list[str]:
    return [problem.pointer for problem in error.value.problems]


def test_a_repeated_submission_is_answered_even_if_it_would_be_refused_now(desk: Desk) -> None:
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
def test_an_idempotency_key_counts_within_one_caller_and_project(
    tmp_path: Path, submissions: list[tuple[str, str, str, int]]
) -> None:
    """Each caller gets the same answers in each project as if there were no other caller or project."""
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


def test_a_submission_must_name_existing_jobs_and_webhooks(desk: Desk) -> None:
    with pytest.raises(InvalidSpec) as error:
        desk.commands.submit(a_spec(after=["nobody"]), None)
    assert problems(error) == ["/after/0"]
    with pytest.raises(InvalidSpec) as error:
        desk.commands.submit(a_spec(notify=["pager", "nobody"]), None)
    assert list(error.value.problems) == [
        FieldProblem("/notify/1", "there is no webhook 'nobody'; known: audit, pager"),
    ]
    assert desk.store.tables.jobs == {}


def test_a_submission_without_a_key_is_always_new_and_looks_up_no_other(
    desk: Desk, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(desk.store, "repeated", None)
    submitted = [desk.commands.submit(a_spec(), None) for _ in range(2)]
    assert [is_new for _, is_new in submitted] == [True, True]
    assert len(desk.store.tables.jobs) == 2


def test_an_array_with_a_key_is_stored_once(desk: Desk) -> None:
    document = {"name": "tune", "run": {"command": ["true"], "workdir": "/"}, "sweep": {"product": {"--n": [1, 2]}}}

    def submit(key: str | None) -> tuple[set[str], bool]:
        members, is_new = desk.commands.submit_array(parse_array(document), key)
        return {job.id for job in members}, is_new

    first, again = submit("key"), submit("key")
    assert (first[1], again) == (True, (first[0], False))
    assert submit(None)[0].isdisjoint(submit(None)[0])
    assert len({job.labels[ARRAY_LABEL] for job in (each.spec for each in desk.store.tables.jobs.values())}) == 3


MEMBER: dict[str, Any] = {"array": {"id": "tune-1", "index": 1, "size": 2}, "labels": {"array": "tune-1"}}


def test_the_service_sets_the_place_in_an_array(desk: Desk) -> None:
    with pytest.raises(InvalidSpec) as error:
        desk.commands.submit(a_spec(**MEMBER), None)
    assert problems(error) == ["/array"]
    desk.add(state=JobState.FAILED, spec=MEMBER)
    assert desk.commands.retry("job-1", RetryRequest(patch={"priority": 1})).spec.labels == {"array": "tune-1"}
    with pytest.raises(InvalidSpec) as error:
        desk.commands.retry("job-1", RetryRequest(patch={"labels": {"array": "other"}}))
    assert problems(error) == ["/patch/labels/array"]


def test_a_submission_must_not_keep_its_snapshots_in_the_services_folder(desk: Desk, tmp_path: Path) -> None:
    with pytest.raises(InvalidSpec) as error:
        desk.commands.submit(a_spec(snapshot={"dir": str(tmp_path)}), None)
    assert problems(error) == ["/snapshot/dir"]


def test_a_workdir_may_be_named_like_a_job_directory(desk: Desk, tmp_path: Path) -> None:
    workdir = tmp_path / "demo-abcdefgh"
    workdir.mkdir()
    desk.commands.submit(a_spec(run={"command": ["true"], "workdir": str(workdir)}), None)


def test_a_job_whose_cluster_was_removed_has_no_warnings(desk: Desk) -> None:
    idle = {"resources": {"cpus": 2}}
    assert len(desk.commands.list_warnings(a_spec(**idle))) == 1
    assert desk.commands.list_warnings(a_spec(cluster="removed", **idle)) == []


@pytest.mark.parametrize("end", [JobState.SUCCEEDED, JobState.FAILED, JobState.CANCELLED])
def test_an_ended_job_is_not_scaled(desk: Desk, end: JobState) -> None:
    desk.add(state=end)
    with pytest.raises(Conflict, match=f"has ended {end}; retry it with a patch"):
        desk.commands.scale("job-1", "2")


def test_scaling_to_the_present_size_changes_nothing(desk: Desk) -> None:
    job = desk.add(state=JobState.RUNNING)
    assert desk.commands.scale("job-1", job.spec.topology.nodes) == job
    assert (desk.requests(), desk.woken) == (0, 0)
    assert desk.commands.scale("job-1", "2").spec.topology.nodes == "2"
    assert (desk.requests(), desk.woken) == (1, 1)


def test_a_wrong_size_is_refused_with_the_field_of_the_request(desk: Desk) -> None:
    desk.add(state=JobState.RUNNING)
    with pytest.raises(InvalidSpec) as error:
        desk.commands.scale("job-1", "9")
    assert problems(error) == ["/nodes"]


def test_a_snapshot_needs_a_running_attempt(desk: Desk) -> None:
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


def test_a_request_is_decided_again_if_another_one_came_first(desk: Desk) -> None:
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


def test_a_job_that_is_being_cancelled_can_be_retried_once_it_has_ended(desk: Desk) -> None:
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


def test_a_pending_retry_is_not_repeated_and_a_different_one_must_wait(desk: Desk) -> None:
    desk.add(state=JobState.FAILED)
    commit(desk)
    commit(desk, "step-00000240-a1-g1")
    terms = RetryRequest(restore_from=SNAPSHOT, patch={"priority": 3})
    requested = desk.commands.retry("job-1", terms)
    assert requested.desired == Desired(number=1, retry_number=1, restore_from=SNAPSHOT)
    assert desk.commands.retry("job-1", terms) == requested
    for other in (
        terms.model_copy(update={"restore_from": "step-00000240-a1-g1"}),
        terms.model_copy(update={"restore_from": None}),
        terms.model_copy(update={"patch": {"priority": 4}}),
    ):
        with pytest.raises(Conflict, match="a different retry that has not started yet"):
            desk.commands.retry("job-1", other)
    assert desk.requests() == 1


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("../../etc", "must be a snapshot's name"),
        ("step-00000999-a1-g1", "has no committed snapshot"),
    ],
)
def test_a_retry_restores_only_a_committed_snapshot(desk: Desk, name: str, message: str) -> None:
    desk.add(state=JobState.FAILED)
    commit(desk)
    with pytest.raises(InvalidSpec, match=message) as error:
        desk.commands.retry("job-1", RetryRequest(restore_from=name))
    assert problems(error) == ["/restore_from"]


def test_a_snapshot_is_looked_up_where_the_retry_will_look(desk: Desk, tmp_path: Path) -> None:
    desk.add(state=JobState.FAILED)
    commit(desk)
    elsewhere = RetryRequest(restore_from=SNAPSHOT, patch={"snapshot": {"dir": str(tmp_path / "elsewhere")}})
    with pytest.raises(InvalidSpec, match="has no committed snapshot"):
        desk.commands.retry("job-1", elsewhere)
    moved = tmp_path / "elsewhere/job-1" / SNAPSHOT / "MANIFEST.json"
    moved.parent.mkdir(parents=True)
    moved.touch()
    assert desk.commands.retry("job-1", elsewhere).desired.restore_from == SNAPSHOT


@dataclass
class Journals:
    """A history that knows one snapshot."""

    snapshot: str

    def has_snapshot(self, job_id: str, name: str) -> bool:
        return (job_id, name) == ("job-1", self.snapshot)


@pytest.mark.parametrize(("shares_files", "spec"), [(False, {}), (True, {"snapshot": {"dir": "s3://bucket/x"}})])
def test_a_snapshot_that_the_service_cannot_read_is_looked_up_in_the_journals(
    desk: Desk, shares_files: bool, spec: dict[str, Any]
) -> None:
    desk.add(state=JobState.FAILED, spec=spec)
    cluster = replace(desk.cluster, shares_files=shares_files)
    checks = Checks(jobs=desk.store, clusters={"local": cluster})
    commit(desk)

    def restores(history: Journals | None) -> bool:
        commands = Commands(
            desk.store, desk.store, checks, VirtualClock(), lambda: None, history=cast(HistoryReader | None, history)
        )
        try:
            return commands.retry("job-1", RetryRequest(restore_from=SNAPSHOT)).desired.restore_from == SNAPSHOT
        except InvalidSpec:
            return False

    assert [restores(each) for each in (None, Journals("step-00000240-a1-g1"), Journals(SNAPSHOT))] == [
        False,
        False,
        True,
    ]


def test_a_retry_cannot_change_name_project_or_cluster(desk: Desk) -> None:
    desk.add(state=JobState.FAILED)
    with pytest.raises(InvalidSpec) as error:
        desk.commands.retry("job-1", RetryRequest(patch={"name": "demo", "project": "other"}))
    assert problems(error) == ["/patch/project"]


def test_a_retry_without_a_patch_does_not_check_the_spec_again(desk: Desk) -> None:
    gone = {"run": {"command": ["true"], "workdir": "/no/such/folder"}}
    desk.add(state=JobState.FAILED, spec=gone)
    assert desk.commands.retry("job-1", RetryRequest()).desired.retry_number == 1
    with pytest.raises(InvalidSpec) as error:
        desk.commands.retry("job-1", RetryRequest(patch={"priority": 1}))
    assert problems(error) == ["/patch/run/workdir"]


def test_a_patch_keeps_a_webhook_that_was_removed_from_the_settings(desk: Desk) -> None:
    desk.add(state=JobState.FAILED, spec={"notify": ["lost"]})
    patched = desk.commands.retry("job-1", RetryRequest(patch={"priority": 1}))
    assert patched.spec.notify == desk.store.get("job-1").spec.notify
    with pytest.raises(InvalidSpec) as error:
        desk.commands.retry("job-1", RetryRequest(patch={"notify": ["lost", "nobody"]}))
    assert problems(error) == ["/patch/notify/1"]


def test_jobs_cannot_wait_for_each_other_in_a_cycle(desk: Desk) -> None:
    desk.add("job-1", state=JobState.FAILED)
    desk.add("job-2", spec={"after": ["job-1"]})
    desk.add("job-3", spec={"after": ["job-2", "job-gone"]})
    for after in ("job-1", "job-2", "job-3"):
        with pytest.raises(InvalidSpec, match=f"job {after} waits for this one") as error:
            desk.commands.retry("job-1", RetryRequest(patch={"after": [after]}))
        assert problems(error) == ["/patch/after/0"]
    desk.add("job-4")
    assert desk.commands.retry("job-1", RetryRequest(patch={"after": ["job-4"]})).spec.after == ("job-4",)


def test_a_refused_submission_points_into_its_own_document(desk: Desk) -> None:
    with pytest.raises(InvalidSpec) as error:
        desk.commands.submit(a_spec(run={"command": ["true"], "workdir": "/no/such/folder"}), None)
    assert problems(error) == ["/run/workdir"]


def test_a_retry_after_one_that_has_started_is_a_new_one(desk: Desk) -> None:
    desk.add(state=JobState.FAILED)
    desk.commands.retry("job-1", RetryRequest())
    begun = replace(desk.store.get("job-1"), retries_done=1)
    desk.store.tables.put_job(begun)
    assert desk.commands.retry("job-1", RetryRequest(patch={"priority": 1})).desired.retry_number == 2


def test_a_caller_cannot_wait_for_a_job_that_it_may_not_see(desk: Desk) -> None:
    waited_for = desk.add().id
    theirs = desk.commands.acting(STRANGER)
    with pytest.raises(InvalidSpec) as error:
        theirs.submit(a_spec(project="vision", after=[waited_for]), None)
    assert [problem.message for problem in error.value.problems] == [f"there is no job {waited_for}"]
    assert desk.commands.submit(a_spec(project="vision", after=[waited_for]), None)[1]


def test_a_change_keeps_a_dependency_that_the_caller_may_not_see(desk: Desk) -> None:
    waited_for = desk.add().id
    mine = desk.add("job-2", spec={"project": "vision", "after": [waited_for], "topology": {"nodes": "1"}})
    assert desk.commands.acting(STRANGER).scale(mine.id, "2").spec.topology.nodes == "2"


def test_named_secrets_must_exist_and_are_looked_up_only_if_named(desk: Desk) -> None:
    asked: list[str] = []

    def stored(project: str) -> tuple[str, ...]:
        asked.append(project)
        return ("THERE",)

    checks = Checks(jobs=desk.store, clusters={"local": desk.cluster}, secrets=stored)
    commands = Commands(desk.store, desk.store, checks, VirtualClock(), lambda: None)
    run = {"command": ["true"], "workdir": "/"}
    commands.submit(a_spec(), None)
    assert asked == []
    commands.submit(a_spec(run={**run, "secrets": ["THERE"]}), None)
    with pytest.raises(InvalidSpec) as error:
        commands.submit(a_spec(run={**run, "secrets": ["THERE", "ABSENT"]}), None)
    assert problems(error) == ["/run/secrets/1"]
    assert asked == ["default", "default"]


def test_snapshots_cannot_be_at_a_private_address(desk: Desk) -> None:
    desk.commands.submit(a_spec(snapshot={"dir": "s3://bucket/x"}), None)
    with pytest.raises(InvalidSpec) as error:
        desk.commands.submit(a_spec(snapshot={"dir": "http://127.0.0.1:8700/x"}), None)
    assert problems(error) == ["/snapshot/dir"]
