"""Requests to agents, events of one kind, the listed agents, and deleted jobs."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from functools import partial

import pytest
from sqlalchemy import text

from orchestrator.domain.errors import NotFound
from orchestrator.domain.job.attempt import AttemptState
from orchestrator.domain.job.deletion import build_deletion
from orchestrator.domain.job.dependents import Needs
from orchestrator.domain.job.job import Desired, JobState, RequestedChaos, RequestedStacks
from orchestrator.store.deletion_store import DeletionStore
from tests.builders import NOW, at, make_attempt, make_batch, make_event, make_journal_event, make_spec
from tests.store.harness import Stores
from trainer.contract.chaos import Fault


def test_requests_are_read_back_unchanged(stores: Stores) -> None:
    job = stores.add()
    requests = Desired(
        number=1,
        cancelled=True,
        suspended=True,
        retry_number=1,
        restore_from="s",
        snapshot_number=3,
        stacks=RequestedStacks(number=1, attempt=2, rank=3),
        chaos=RequestedChaos(number=1, attempt=2, fault=Fault.NODE_LOSS, replica=0),
    )
    assert stores.jobs.record_request("job-1", requests, make_event("chaos.requested"))
    assert stores.jobs.get("job-1").desired == requests
    assert stores.reader.requested(["job-1"])["job-1"].desired == requests
    stores.apply(job, make_attempt(errand_told=7))
    assert stores.reader.standing("job-1").attempt == make_attempt(errand_told=7)
    assert stores.jobs.record_request("job-1", Desired(number=2), make_event())
    assert stores.jobs.get("job-1").desired == Desired(number=2)


def test_events_of_one_kind_are_read_newest_first(stores: Stores) -> None:
    stores.add_with_attempt()
    saved = [make_journal_event("stacks.saved", evidence={"wish": number}) for number in range(3)]
    others = [make_journal_event("restored")]
    lines = [(10 * number, event) for number, event in enumerate([*saved, *others], 1)]
    stores.ingest(make_batch(events=lines))
    found = stores.history.newest_of_kind("job-1", "stacks.saved", limit=2)
    assert [each.event.evidence["wish"] for each in found] == [2, 1]
    with pytest.raises(NotFound):
        stores.history.newest_of_kind("job-9", "stacks.saved", limit=2)


def test_only_agents_of_the_newest_attempt_are_listed(stores: Stores) -> None:
    job = stores.add_with_attempt()
    evidence = {"replica": 0, "incarnation": 1, "host": "n7", "pid": 12}
    stores.ingest(make_batch(events=[(10, make_journal_event("agent.started", evidence=evidence))]))
    assert [agent.name for agent in stores.history.replicas("job-1", limit=9, cursor=None)[0]] == ["n7"]
    stores.apply(job, make_attempt(state=AttemptState.LOST))
    stores.apply(job, make_attempt(number=2, port=20001))
    assert stores.history.replicas("job-1", limit=9, cursor=None) == ([], None)
    invalid = {"replica": "x", "incarnation": 1, "host": ["n"], "pid": "p"}
    stores.ingest(make_batch(attempt=2, events=[(10, make_journal_event("agent.started", evidence=invalid))]))
    (agent,) = stores.history.replicas("job-1", limit=9, cursor=None)[0]
    assert (agent.attempt, agent.replica, agent.name, agent.pid) == (2, 0, None, None)


def test_dependent_jobs_are_found_while_they_are_not_at_rest(stores: Stores) -> None:
    source = "/runs/first-1/snapshots"
    stores.add("first-1")
    stores.add("other", spec=make_spec(after=["second"]))
    waiting = stores.add("b", spec=make_spec(after=["first-1"], snapshot={"from": source}))
    needs = [Needs(job_id="b", after=["first-1"], source=source)]
    assert stores.reader.dependents("first-1") == needs
    stores.apply(waiting.to(JobState.CANCELLED, reason="over", now=NOW))
    assert stores.reader.dependents("first-1") == []
    assert stores.jobs.record_request("b", Desired(number=1, retry_number=1), make_event("retry.requested"))
    assert stores.reader.dependents("first-1") == needs


def test_an_ended_job_is_deleted_and_leaves_a_record(stores: Stores) -> None:
    deletions = DeletionStore(stores.database)
    job = stores.add(owner="alice")
    buried = build_deletion(job, by="bob", at=at(5), files=True)
    assert not deletions.delete(buried, seen=0), "the job has not ended"
    ended = job.to(JobState.FAILED, reason="over", now=NOW)
    stores.apply(ended, make_attempt(state=AttemptState.FAILED))
    buried = build_deletion(ended, by="bob", at=at(5), files=True)
    assert not deletions.delete(buried, seen=1), "there is no such request"
    assert stores.jobs.record_request("job-1", Desired(number=1, retry_number=1), make_event("retry.requested"))
    assert not deletions.delete(buried, seen=1), "a retry is requested"
    assert stores.jobs.record_request("job-1", Desired(number=2), make_event("cancel.requested"))
    assert deletions.deletion("job-1") is None
    assert deletions.delete(buried, seen=2)
    assert not deletions.delete(buried, seen=2)
    with pytest.raises(NotFound):
        stores.jobs.get("job-1")
    place = stores.places.places(["job-1", "job-9"])
    assert {name: (each.project, each.owner) for name, each in place.items()} == {"job-1": ("default", "alice")}
    assert deletions.deletion("job-1") == buried
    assert (deletions.due("local"), deletions.due("elsewhere")) == ([buried], [])
    deletions.files_deleted("job-1")
    deletions.files_deleted("job-1")
    assert (deletions.due("local"), deletions.deletion("job-1")) == ([], replace(buried, files_due=False))


@pytest.mark.parametrize("backend", ["postgresql"])
def test_a_deletion_waits_for_a_report_and_does_not_block_it(stores: Stores) -> None:
    job = stores.add_with_attempt("reported")
    stores.apply(replace(job, state=JobState.SUCCEEDED))
    deletion = build_deletion(job, by="alice", at=NOW, files=False)
    delete = partial(DeletionStore(stores.database).delete, deletion, seen=job.desired.number)
    with ThreadPoolExecutor() as pool:
        with stores.database.write() as report:
            report.execute(text("SELECT 1 FROM trainings WHERE job_id = 'reported' FOR UPDATE"))
            deleted = pool.submit(delete)
            while not report.scalar(text("SELECT count(*) FROM pg_locks WHERE NOT granted")):
                assert not deleted.done()
            report.execute(text("SELECT 1 FROM jobs WHERE id = 'reported' FOR KEY SHARE NOWAIT"))  # as a foreign key
        assert deleted.result(60)
