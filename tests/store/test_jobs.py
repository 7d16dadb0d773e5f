from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor, wait
from threading import Barrier

import pytest

from orchestrator.domain.errors import Conflict, NotFound
from orchestrator.domain.job.attempt import AttemptState
from orchestrator.domain.job.job import Desired, Job, JobState
from orchestrator.ports.jobs import Requested
from orchestrator.store.records import JobFilter
from tests.builders import NOW, at, make_attempt, make_event, make_job, make_spec
from tests.store.harness import Stores

NASTY = 'it\'s "100%" _done_; DROP TABLE jobs;-- \\ 🚀 ünïcode\n'


def test_a_job_comes_back_as_it_was_added(stores: Stores) -> None:
    spec = make_spec(
        run={"script": "train.py", "args": ["--lr", "1e-3"], "env": {"A": NASTY}},
        snapshot={"from": "/data/old", "interval": "30s"},
        labels={"team": "vision"},
    )
    job = make_job(spec=spec, spent={"node": 2}, fruitless=3, retry_at=at(5), retries_done=1)
    stores.jobs.add(job, idempotency_key=None, digest="d", event=make_event())
    assert stores.jobs.get("job-1") == job


def test_an_unknown_job_is_not_found(stores: Stores) -> None:
    with pytest.raises(NotFound, match="job-9"):
        stores.jobs.get("job-9")
    with pytest.raises(NotFound, match="job-9"):
        stores.jobs.record_request("job-9", Desired(), make_event())


def test_sixteen_calls_with_one_key_make_one_job(open_stores: Callable[[], Stores]) -> None:
    services = [open_stores() for _ in range(4)]  # four processes with four threads each
    barrier = Barrier(16)

    def submit(number: int) -> str:
        barrier.wait()
        return services[number % 4].add(f"job-{number}", key="same").id

    with ThreadPoolExecutor(16) as threads:
        answers = set(threads.map(submit, range(16)))
    page, _ = services[0].reader.standings(JobFilter(), limit=100, cursor=None)
    assert {standing.job.id for standing in page} == answers
    assert len(answers) == 1
    assert len(services[0].events(answers.pop())) == 1


def test_sixteen_calls_of_four_callers_with_one_key_make_four_jobs(open_stores: Callable[[], Stores]) -> None:
    services = [open_stores() for _ in range(4)]
    barrier = Barrier(16)

    def submit(number: int) -> tuple[str | None, str]:
        barrier.wait()
        job = services[number % 4].add(f"job-{number}", key="same", owner=f"caller-{number // 4}")
        return job.owner, job.id

    with ThreadPoolExecutor(16) as threads:
        answers = set(threads.map(submit, range(16)))
    assert sorted(owner or "" for owner, _ in answers) == [f"caller-{number}" for number in range(4)]
    assert len(_found(services[0], JobFilter())) == 4


def test_a_repeated_call_answers_with_the_job_as_it_stands_now(stores: Stores) -> None:
    stores.add("job-1", key="k")
    stores.apply(make_job("job-1").to(JobState.STARTING, reason="starts", now=at(1)))
    again = stores.add("job-2", key="k")
    assert (again.id, again.state) == ("job-1", JobState.STARTING)


def test_one_key_with_another_body_is_a_conflict(stores: Stores) -> None:
    stores.add("job-1", key="k")
    again = make_job("job-2", owner="alice")
    with pytest.raises(Conflict, match="'k' was used for job job-1 with another body"):
        stores.jobs.add(again, idempotency_key="k", digest="other", event=make_event())
    with pytest.raises(NotFound):
        stores.jobs.get("job-2")


def test_two_projects_may_use_one_key(stores: Stores) -> None:
    stores.add("job-1", key="k")
    assert stores.add("job-2", key="k", spec=make_spec(project="other")).id == "job-2"


def test_two_callers_may_use_one_key_whatever_they_submit(stores: Stores) -> None:
    stores.add("job-1", key="k")
    assert stores.add("job-2", key="k", owner="bob").id == "job-2"
    other = make_job("job-3", owner="carol")
    assert stores.jobs.add(other, idempotency_key="k", digest="other", event=make_event()).id == "job-3"
    assert stores.jobs.repeated("default", "nobody", "k", "d1") is None
    repeated = stores.jobs.repeated("default", "bob", "k", "d1")
    assert repeated is not None
    assert repeated.id == "job-2"


def test_jobs_without_an_owner_never_meet(stores: Stores) -> None:
    assert stores.add("job-1", key="k", owner=None).id == "job-1"
    assert stores.add("job-2", key="k", owner=None).id == "job-2"


def test_jobs_without_a_key_never_meet(stores: Stores) -> None:
    assert stores.add("job-1").id == "job-1"
    assert stores.add("job-2").id == "job-2"


def test_a_second_job_under_one_id_is_a_conflict(stores: Stores) -> None:
    stores.add("job-1")
    with pytest.raises(Conflict, match="job-1"):
        stores.add("job-1", key="k")


def test_a_request_leaves_the_status_alone_and_a_status_the_request(stores: Stores) -> None:
    stale = stores.add("job-1")
    stores.jobs.record_request("job-1", Desired(number=1, cancelled=True), make_event("cancel.requested"))
    stores.apply(stale.to(JobState.STARTING, reason="submitted", now=at(1)))  # decided before the request was seen
    retry = Desired(number=2, cancelled=True, retry_number=1, restore_from="s", suspended=True, snapshot_number=3)
    stores.jobs.record_request("job-1", retry, make_event("retry.requested"))
    job = stores.jobs.get("job-1")
    assert (job.state, job.reason) == (JobState.STARTING, "submitted")
    assert job.desired == retry


def test_a_status_does_not_undo_a_patched_spec(stores: Stores) -> None:
    stale = stores.add("job-1", spec=make_spec(labels={"a": "1"}))
    patched = make_spec(name="renamed", labels={"b": "2"})
    assert stores.jobs.record_request("job-1", Desired(number=1, retry_number=1), make_event(), spec=patched)
    stores.apply(stale.to(JobState.FAILED, reason="gave up", now=at(1)))
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
def test_filters_find_exactly_what_they_say(stores: Stores, where: JobFilter, expected: list[str]) -> None:
    stores.add("ant", spec=make_spec(cluster="slurm-1"), created_at=at(1))
    stores.add("cat", spec=make_spec(labels={"team": "vision"}), created_at=at(2), state=JobState.FAILED, reason=NASTY)
    stores.add("fox", spec=make_spec(project="zoo"), created_at=at(3), reason="k_t")
    assert _found(stores, where) == expected


def _found(stores: Stores, where: JobFilter) -> list[str]:
    return [standing.job.id for standing in stores.reader.standings(where, limit=50, cursor=None)[0]]


@pytest.mark.parametrize("text", [NASTY, "nul\0 in it", "lone \ud800 surrogate", "x" * 200_000])
def test_no_text_breaks_the_store(stores: Stores, text: str) -> None:
    job = stores.add("job-1", reason=text)
    stores.apply(job, make_attempt(reason=text), make_event(sentence=text, evidence={text: [text, float("nan")]}))
    (_, event) = stores.events()
    assert event.sentence == stores.jobs.get("job-1").reason
    if text == NASTY:
        assert event.sentence == text
        assert event.evidence == {text: [text, "nan"]}
    assert "\0" not in event.sentence
    assert len(event.sentence) < 70_000


def test_times_come_back_in_utc_to_the_microsecond(stores: Stores) -> None:
    moment = at(0.000001)
    stores.add("job-1", created_at=moment)
    assert stores.jobs.get("job-1").created_at == moment
    assert stores.jobs.get("job-1").created_at.utcoffset() == NOW.utcoffset()


def test_the_newest_attempt_and_snapshot_stand_for_the_job(stores: Stores) -> None:
    job: Job = stores.add("job-1")
    for number in (1, 2, 3):
        stores.apply(job, make_attempt("job-1", number))
    standing = stores.reader.standing("job-1")
    assert standing.attempt is not None
    assert (standing.attempt.key.number, standing.attempts, standing.newest_snapshot) == (3, 3, None)
    with pytest.raises(NotFound):
        stores.reader.standing("job-2")


def test_writers_of_one_process_take_turns_and_none_holds_a_connection_while_it_waits(stores: Stores) -> None:
    database = stores.database
    if database.file is None:
        pytest.skip("PostgreSQL serves writers side by side")
    with ThreadPoolExecutor(4) as pool:
        with database.write() as session:
            session.connection()
            waiting = [pool.submit(stores.add, f"job-{number}") for number in range(4)]
            wait(waiting, timeout=0.2)
            assert not any(one.done() for one in waiting)
            assert database.engine.pool.checkedout() == 1  # type: ignore[attr-defined]
        assert len({one.result(timeout=10).id for one in waiting}) == 4


def test_a_report_is_answered_with_what_is_requested_of_the_newest_attempt(stores: Stores) -> None:
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
