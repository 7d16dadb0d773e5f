"""The client: which calls it retries, and how it survives restarts of the service."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator

import pytest

from orchestrator.client import Client, RequestRefused, ServiceUnreachable, WaitTimeout, connect
from orchestrator.client.calls import Calls
from orchestrator.client.locator import Address
from orchestrator.client.transport import Transport
from orchestrator.client.watch import follow_logs
from orchestrator.domain.errors import ConfigurationError, NotFound
from orchestrator.domain.job.job import JobState
from orchestrator.settings import Settings
from orchestrator.wire.problems import Problem
from tests.cli.fake_service import Answer, FakeService, make_event, make_job

SPEC = {"name": "gpt", "run": {"script": "train.py", "workdir": "/src"}}


@pytest.fixture
def client(service: FakeService) -> Iterator[Client]:
    with Client(f"http://127.0.0.1:{service.port}", patience_s=5) as client:
        yield client


def busy(status: int = 503) -> Answer:
    problem = Problem(type="x", title="busy", status=status, detail="the database does not answer")
    return Answer(status, problem, headers={"Retry-After": "0"})


@pytest.mark.parametrize("status", [429, 502, 503, 504])
def test_a_submission_to_a_busy_service_is_retried_with_the_same_key(
    client: Client, service: FakeService, status: int
) -> None:
    service.refusals = [busy(status), busy(status)]

    job = client.submit(SPEC)

    assert [request for request in service.requests if request[0] == "POST"] == [("POST", "/api/v1/jobs")] * 3
    assert list(service.jobs) == [job.id]


def test_a_submission_whose_answer_is_lost_makes_one_job(client: Client, service: FakeService) -> None:
    lost: list[str] = []

    def lose_the_first_answer(path: str) -> None:
        if not lost:
            lost.append(path)
            service.answer("POST", path, {}, b'{"name": "gpt", "run": {"script": "train.py"}}', "key-1")
            raise ConnectionAbortedError

    service.before_answer = lose_the_first_answer
    job = client.submit(SPEC, idempotency_key="key-1")

    assert list(service.jobs) == [job.id]


def test_a_retry_whose_answer_is_lost_is_not_sent_again(client: Client, service: FakeService) -> None:
    service.add(make_job())

    def lose(path: str) -> None:
        service.requests.append(("lost", path))
        raise ConnectionAbortedError

    service.before_answer = lose
    with pytest.raises(ServiceUnreachable, match="closed the connection"):
        client.retry("gpt-0001")
    assert len(service.requests) == 1


@pytest.mark.parametrize("asked", ["retry", "snapshot", "chaos"])
def test_a_request_that_is_not_idempotent_is_retried_only_after_429(
    client: Client, service: FakeService, asked: str
) -> None:
    """With 503 the request may have been recorded; with 429 it was not."""
    service.add(make_job())
    ask = {"retry": client.retry, "snapshot": client.snapshot, "chaos": lambda job: client.chaos(job, "kill")}[asked]
    service.refusals = [busy(503)]
    with pytest.raises(ServiceUnreachable, match="the database does not answer"):
        ask("gpt-0001")
    assert len(service.requests) == 1
    service.refusals = [busy(429)]
    assert ask("gpt-0001").pending == [asked]


def test_retries_end_after_patience_s(service: FakeService) -> None:
    service.stop()
    url, slept = f"http://127.0.0.1:{service.port}", [0.0]
    calls = Calls(Transport(lambda: Address(url), patience_s=7, clock=lambda: sum(slept), sleep=slept.append))
    with pytest.raises(ServiceUnreachable):
        calls.text("/jobs/gpt-0001")
    assert 2 < sum(slept) <= 7


def test_a_refusal_carries_its_problem_and_is_not_repeated(client: Client, service: FakeService) -> None:
    with pytest.raises(RequestRefused) as caught:
        client.submit({"name": "gpt", "run": {"script": "a.py"}, "prioritie": 3})
    assert [error.pointer for error in caught.value.problem.errors] == ["/prioritie"]
    assert len(service.requests) == 1


def test_an_unknown_job_is_not_found(client: Client) -> None:
    with pytest.raises(NotFound, match="no job"):
        client.job("a/b?c")


def test_an_answer_of_another_program_is_refused(client: Client, service: FakeService) -> None:
    service.refusals = [Answer(404, text="<html>"), Answer(200, text="<html>")]
    for _ in range(2):
        with pytest.raises(ServiceUnreachable, match="does not answer like an orchestrator"):
            client.job("gpt-0001")


def test_lists_are_read_page_by_page(client: Client, service: FakeService) -> None:
    for number in range(8):
        service.add(make_job(f"gpt-{number}"))
    assert [job.id for job in client.jobs()] == [f"gpt-{number}" for number in range(8)]


def test_projects_are_listed(client: Client, service: FakeService) -> None:
    use = {"cluster": "local", "jobs": 1, "devices": 2, "queued": 0}
    service.inventory["projects"] = [{"name": "default", "max_jobs": 2, "max_devices": None, "use": [use]}]
    (project,) = client.projects()
    assert (project.name, project.max_jobs, project.use[0].devices) == ("default", 2, 2)


def test_wait_reports_each_change_until_the_job_ends(client: Client, service: FakeService) -> None:
    service.add(
        make_job(),
        make_job(state=JobState.RUNNING),
        make_job(state=JobState.RUNNING),
        make_job(state=JobState.SUCCEEDED),
    )
    seen: list[JobState] = []
    assert client.wait("gpt-0001", on_change=lambda job: seen.append(job.state)).state is JobState.SUCCEEDED
    assert seen == [JobState.QUEUED, JobState.RUNNING, JobState.SUCCEEDED]


def test_wait_times_out_with_the_jobs_state(client: Client, service: FakeService) -> None:
    service.add(make_job())
    with pytest.raises(WaitTimeout, match=r"QUEUED after 0\.1 s: waits for its turn"):
        client.wait("gpt-0001", timeout_s=0.1)


def test_wait_survives_a_restart_on_another_port(service: FakeService) -> None:
    service.add(make_job(state=JobState.RUNNING))
    first = service.port

    def restart() -> None:
        service.stop()
        time.sleep(0.5)
        service.add(make_job(state=JobState.SUCCEEDED))
        service.start()

    with connect(Settings(root=service.root), patience_s=10) as client:
        assert client.job("gpt-0001").state is JobState.RUNNING
        threading.Thread(target=restart).start()
        assert client.wait("gpt-0001", outage_s=10).state is JobState.SUCCEEDED
    assert service.port != first


def test_a_followed_log_continues_after_a_broken_connection(client: Client, service: FakeService) -> None:
    service.add(make_job(state=JobState.SUCCEEDED))
    service.log = "".join(f"line {number}\n" for number in range(50)) + "same\nsame\n"
    service.cut_log_after = 103
    assert list(client.follow_logs("gpt-0001")) == service.log.splitlines()


def test_a_followed_log_is_requested_again_until_the_job_ends(client: Client, service: FakeService) -> None:
    """A service that shuts down ends its streams without an error."""
    service.add(make_job(state=JobState.RUNNING), make_job(state=JobState.SUCCEEDED))
    service.log = "one\n"
    lines = client.follow_logs("gpt-0001")
    assert next(lines) == "one"
    service.log = "one\ntwo\n"
    assert list(lines) == ["two"]


@pytest.mark.parametrize(
    ("before", "after", "new"),
    [
        ("one\n", "[a1 g1 r0/0] one\n[a1 g2 r0/0] two\n", "[a1 g2 r0/0] two"),  # a second generation began
        ("[a1 g1 r0/0] x\n", "[a1 g1 r0/1] x\n[a1 g1 r0/0] x\n", "[a1 g1 r0/1] x"),  # ranks print the same
    ],
)
def test_lines_that_were_shown_are_recognized_by_their_labels(
    client: Client, service: FakeService, before: str, after: str, new: str
) -> None:
    service.add(make_job(state=JobState.RUNNING), make_job(state=JobState.SUCCEEDED))
    service.log = before
    lines = client.follow_logs("gpt-0001")
    assert next(lines) == before.rstrip()
    service.log = after
    assert list(lines) == [new]


def test_a_silent_log_is_followed_beyond_the_outage_limit(service: FakeService) -> None:
    service.add(make_job(state=JobState.SUCCEEDED))
    service.log = "at last\n"
    now, quiet = 0.0, 4

    def break_off_after_five_minutes(path: str) -> None:
        nonlocal now, quiet
        if path.endswith("/logs") and quiet:
            now, quiet, service.cut_log_after = now + 300, quiet - 1, 0

    service.before_answer = break_off_after_five_minutes
    url = f"http://127.0.0.1:{service.port}"
    calls = Calls(Transport(lambda: Address(url), clock=lambda: now, sleep=lambda _: None))
    assert list(follow_logs(calls, "gpt-0001", {}, outage_s=200)) == ["at last"]


def test_a_cursor_returns_events_that_were_added_later(client: Client, service: FakeService) -> None:
    service.add(make_job())
    service.events["gpt-0001"] = [make_event(number, f"sentence {number}") for number in (1, 2, 3, 4)]
    cursor = client.events_page("gpt-0001", cursor=None).next_cursor
    service.events["gpt-0001"].append(make_event(5, "sentence 5"))
    assert [event.id for event in client.events_page("gpt-0001", cursor=cursor).items] == [4, 5]


def test_a_tokens_line_break_is_removed_and_control_characters_are_refused(service: FakeService) -> None:
    with Client(f"http://127.0.0.1:{service.port}", "secret-token\r\n") as client:
        list(client.jobs())
    assert service.tokens == ["Bearer secret-token"]
    with pytest.raises(ConfigurationError) as refused:
        Client("http://127.0.0.1:1", "secret\rtoken")
    assert "secret" not in str(refused.value)
