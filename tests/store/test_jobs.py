from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor, wait
from threading import Barrier
from typing import Any

import pytest

from orchestrator.domain.errors import Conflict, NotFound
from orchestrator.domain.job.attempt import AttemptState
from orchestrator.domain.job.job import Desired, Job, JobState
from orchestrator.ports.jobs import Requested
from orchestrator.store.records import JobFilter
from tests.builders import NOW, at, make_attempt, make_event, make_job, make_spec
from tests.store.harness import Stores

NASTY = 'it\'s "100%" _done_; DROP TABLE jobs;-- \\ 🚀 ünïcode\n'


def test_a_job_is_read_back_unchanged(stores: Stores) -> None:
    spec = make_spec(
        run={"script": "train.py", "args": ["--lr", "1e-3"], "env": {"A": NASTY}},
        snapshot={"from": "/data/old", "interval": "30s"},
        labels={"team": "vision"},
    )
    job = make_job(spec=spec, spent={"node": 2}, fruitless=3, retry_at=at(5), retries_done=1)
    stores.jobs.add(job, idempotency_key=None, digest="d", event=make_event())
    assert stores.jobs.get("job-1") == job


def test_concurrent_calls_with_the_same_key_create_one_job_for_each_caller(open_stores: Callable[[], Stores]) -> None:
    services = [open_stores() for _ in range(4)]  # like four processes with four threads each
    barrier = Barrier(16)

    def submit(number: int) -> tuple[str | None, str]:
        barrier.wait()
        job = services[number % 4].add(f"job-{number}", key="same", owner=f"caller-{number // 4}")
        return job.owner, job.id

    with ThreadPoolExecutor(16) as threads:
        answers = set(threads.map(submit, range(16)))
    assert sorted(owner or "" for owner, _ in answers) == [f"caller-{number}" for number in range(4)]
    assert sorted(_found(services[0], JobFilter())) == sorted(job_id for _, job_id in answers)
    assert [len(services[0].events(job_id)) for _, job_id in answers] == [1] * 4


def test_a_repeated_call_returns_the_current_job(stores: Stores) -> None:
    stores.add("job-1", key="k")
    stores.apply(make_job("job-1").to(JobState.STARTING, reason="starts", now=at(1)))
    again = stores.add("job-2", key="k")
    assert (again.id, again.state) == ("job-1", JobState.STARTING)


def test_the_same_key_with_another_body_is_a_conflict(stores: Stores) -> None:
    stores.add("job-1", key="k")
    again = make_job("job-2", owner="alice")
    with pytest.raises(Conflict, match="'k' was used for job job-1 with another body"):
        stores.jobs.add(again, idempotency_key="k", digest="other", event=make_event())
    with pytest.raises(NotFound):
        stores.jobs.get("job-2")


@pytest.mark.parametrize(
    ("first", "second"),
    [
        ({"key": "k"}, {"key": "k", "spec": make_spec(project="other")}),
        ({"key": "k", "owner": None}, {"key": "k", "owner": None}),
        ({"key": None}, {"key": None}),
    ],
    ids=["two projects", "no owner", "no key"],
)
def test_a_key_identifies_a_job_only_within_its_project_and_owner(
    stores: Stores, first: dict[str, Any], second: dict[str, Any]
) -> None:
    assert stores.add("job-1", **first).id == "job-1"
    assert stores.add("job-2", **second).id == "job-2"


def test_two_callers_may_use_the_same_key(stores: Stores) -> None:
    stores.add("job-1", key="k")
    assert stores.add("job-2", key="k", owner="bob").id == "job-2"
    other = make_job("job-3", owner="carol")
    assert stores.jobs.add(other, idempotency_key="k", digest="other", event=make_event()).id == "job-3"
    assert stores.jobs.repeated("default", "nobody", "k", "d1") is None
    repeated = stores.jobs.repeated("default", "bob", "k", "d1")
    assert repeated is not None
    assert repeated.id == "job-2"


def test_a_second_job_with_the_same_id_is_a_conflict(stores: Stores) -> None:
    stores.add("job-1")
    with pytest.raises(Conflict, match="job-1"):
        stores.add("job-1", key="k")


def test_a_patched_spec_replaces_the_labels(stores: Stores) -> None:
    stores.add("job-1", spec=make_spec(labels={"a": "1"}))
    patched = make_spec(name="renamed", labels={"b": "2"})
    assert stores.jobs.record_request("job-1", Desired(number=1, retry_number=1), make_event(), spec=patched)
    assert stores.jobs.get("job-1").spec == patched
    assert _found(stores, JobFilter(label=("b", "2"))) == ["job-1"]
    assert _found(stores, JobFilter(label=("a", "1"))) == []


@pytest.mark.parametrize(
    ("where", "expected"),
    [
        (JobFilter(), ["fox", "cat", "ant"]),
        (JobFilter(state=JobState.FAILED), ["cat"]),
        (JobFilter(project="zoo"), ["fox"]),
        (JobFilter(cluster="slurm-1"), ["ant"]),
        (JobFilter(cluster="slurm-1", state=JobState.QUEUED), ["ant"]),
        (JobFilter(cluster="local", state=JobState.QUEUED), ["fox"]),
        (JobFilter(cluster="local", state=JobState.QUEUED, project="default"), []),
        (JobFilter(cluster="slurm-1", state=JobState.FAILED), []),
        (JobFilter(label=("team", "vision")), ["cat"]),
        (JobFilter(label=('"', "' OR 1=1")), []),
        (JobFilter(query="ANT"), ["ant"]),
        (JobFilter(query="100%"), ["cat"]),
        (JobFilter(query="%"), ["cat"]),
        (JobFilter(query="k_t"), ["fox"]),
        (JobFilter(query="; DROP TABLE"), ["cat"]),
        (JobFilter(query="\\"), ["cat"]),
        (JobFilter(query="nul\0l"), []),
        (JobFilter(project="zoo", query="ant"), []),
    ],
)
def test_filters_find_exactly_the_matching_jobs(stores: Stores, where: JobFilter, expected: list[str]) -> None:
    stores.add("ant", spec=make_spec(cluster="slurm-1"), created_at=at(1))
    stores.add("cat", spec=make_spec(labels={"team": "vision"}), created_at=at(2), state=JobState.FAILED, reason=NASTY)
    stores.add("fox", spec=make_spec(project="zoo"), created_at=at(3), reason="k_t")
    assert _found(stores, where) == expected


def _found(stores: Stores, where: JobFilter) -> list[str]:
    return [job.id for job in stores.reader.summaries(where, limit=50, cursor=None)[0]]


@pytest.mark.parametrize("text", [NASTY, "nul\0 in it", "lone \ud800 surrogate", "x" * 200_000])
def test_any_text_can_be_stored(stores: Stores, text: str) -> None:
    job = stores.add("job-1", reason=text)
    stores.apply(job, make_attempt(reason=text), make_event(sentence=text, evidence={text: [text, float("nan")]}))
    (_, event) = stores.events()
    assert event.sentence == stores.jobs.get("job-1").reason
    if text == NASTY:
        assert event.sentence == text
        assert event.evidence == {text: [text, "nan"]}
    assert "\0" not in event.sentence
    assert len(event.sentence) < 70_000


def test_times_are_read_back_in_utc_to_the_microsecond(stores: Stores) -> None:
    moment = at(0.000001)
    stores.add("job-1", created_at=moment)
    assert stores.jobs.get("job-1").created_at == moment
    assert stores.jobs.get("job-1").created_at.utcoffset() == NOW.utcoffset()


def test_a_job_is_listed_with_its_newest_attempt(stores: Stores) -> None:
    job: Job = stores.add("job-1")
    for number in (1, 2, 3):
        stores.apply(job, make_attempt("job-1", number))
    standing = stores.reader.standing("job-1")
    assert standing.attempt is not None
    assert (standing.attempt.key.number, standing.attempts, standing.newest_snapshot) == (3, 3, None)
    with pytest.raises(NotFound):
        stores.reader.standing("job-2")


def test_waiting_writers_hold_no_connection(stores: Stores) -> None:
    database = stores.database
    if database.file is None:
        pytest.skip("PostgreSQL has concurrent writers")
    with ThreadPoolExecutor(4) as pool:
        with database.write() as session:
            session.connection()
            waiting = [pool.submit(stores.add, f"job-{number}") for number in range(4)]
            wait(waiting, timeout=0.2)
            assert not any(one.done() for one in waiting)
            assert database.engine.pool.checkedout() == 1  # type: ignore[attr-defined]
        assert len({one.result(timeout=300).id for one in waiting}) == 4


def test_requests_are_read_with_the_newest_attempt(stores: Stores) -> None:
    job = stores.add_with_attempt()
    stores.apply(job, make_attempt(state=AttemptState.LOST, stopping_since=NOW))
    stores.add("job-2")
    found = stores.reader.requested(["job-1", "job-2", "nobody"])
    assert found.keys() == {"job-1", "job-2"}
    assert found["job-1"] == Requested(desired=Desired(), newest=1, stopping=True)
    assert found["job-2"] == Requested(desired=Desired(), newest=None, stopping=False)
    stores.apply(job, make_attempt(number=2))
    stores.apply(job, make_attempt(number=3))
    assert stores.reader.requested(["job-1"])["job-1"] == Requested(desired=Desired(), newest=3, stopping=False)
    stores.apply(job, make_attempt(number=3, stopping_since=NOW))
    assert stores.reader.requested(["job-1"])["job-1"].stopping
    stores.apply(job, make_attempt(number=4, state=AttemptState.LOST, ended_at=NOW))
    assert stores.reader.requested(["job-1"])["job-1"].stopping, "it has ended"
