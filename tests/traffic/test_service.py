"""Today's service understands clients and agents of released versions, and they can read its answers."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from concurrent.futures import Future
from dataclasses import dataclass, field, replace
from pathlib import Path

import httpx
import pytest

from orchestrator.api.agents import find_attempt
from orchestrator.api.app import create_app
from orchestrator.domain.job.attempt import AttemptKey, AttemptState
from orchestrator.domain.job.job import JobState
from orchestrator.intake.intake import Intake
from orchestrator.store.job_reader import JobReader
from orchestrator.store.journal_store import SqlJournalStore
from orchestrator.wire.reports import DesiredView, ReportBody
from tests.api.conftest import World
from tests.api.fakes import Client
from tests.traffic.exchange import Exchange
from tests.traffic.kept import VERSIONS, losses, said_by_agents, said_by_clients

_PLACE = re.compile(r"^/api/v1/jobs/([a-z0-9-]+)")


@dataclass(frozen=True)
class Direct:
    """The real intake, without the thread that groups reports."""

    intake: Intake

    def receive(self, body: ReportBody) -> Future[DesiredView]:
        answer: Future[DesiredView] = Future()
        (found,) = self.intake.accept([body])
        if isinstance(found, Exception):
            answer.set_exception(found)
        else:
            answer.set_result(found)
        return answer


@dataclass
class Replay:
    """Replays a record. `ids` maps recorded ids to ids here. Jobs are put into their recorded states."""

    world: World
    client: Client
    ids: dict[str, str] = field(default_factory=dict)
    attempts: dict[str, int] = field(default_factory=dict)
    over: set[tuple[str, int]] = field(default_factory=set)

    def send(self, exchange: Exchange) -> httpx.Response:
        self._arrange(exchange)
        answer = self.client.request(
            exchange.method,
            self._here(exchange.path),
            content=self._here(exchange.body) or None,
            headers=exchange.headers,
        )
        self._learn(exchange, answer)
        return answer

    def begin_attempt(self, job_id: str, number: int) -> None:
        """Start an attempt, as the supervisor does before an agent can report."""
        here = self.ids[job_id]
        if self.attempts.get(here, 0) >= number:
            return
        self._end_attempt(here)
        self.world.start(here, number, state=AttemptState.RUNNING, nodes="1:2", asked="1")
        self.attempts[here] = number

    def _end_attempt(self, here: str) -> None:
        if here in self.attempts and (here, self.attempts[here]) not in self.over:
            self.over.add((here, self.attempts[here]))
            now = self.world.clock.now()
            self.world.start(here, self.attempts[here], state=AttemptState.CANCELLED, ended_at=now)

    def _arrange(self, exchange: Exchange) -> None:
        told = exchange.answer_json()
        if not isinstance(told, dict) or told.get("id") not in self.ids or "state" not in told:
            return
        here, state = self.ids[told["id"]], JobState(told["state"])
        if told["attempt"] is not None:
            self.begin_attempt(told["id"], told["attempt"])
        if state in (JobState.SUSPENDED, JobState.QUEUED) or state.terminal:
            self._end_attempt(here)
        job = replace(self.world.job(here), state=state, finished_at=self.world.clock.now() if state.terminal else None)
        self.world.apply(job)

    def _learn(self, exchange: Exchange, answer: httpx.Response) -> None:
        then, now = exchange.answer_json(), answer.json() if "json" in answer.headers["content-type"] else None
        if isinstance(then, dict) and isinstance(now, dict) and "id" in then and "id" in now:
            self.ids[then["id"]] = now["id"]

    def _here(self, text: str) -> str:
        for then, now in self.ids.items():
            text = text.replace(then, now)
        return text


@pytest.fixture
def replay(world: World) -> Iterator[Replay]:
    reader = JobReader(world.database)
    intake = Intake(SqlJournalStore(world.database), reader, world.clock, lambda job_id: Path(world.root, job_id))
    client = Client(create_app(replace(world.services, intake=Direct(intake))))
    yield Replay(world, client)
    client.close()


def in_order(version: str) -> Iterator[Exchange]:
    """Yield a client's exchanges. Each job's reports follow its submission."""
    agents = said_by_agents(version)
    for exchange in said_by_clients(version):
        yield exchange
        told = exchange.answer_json()
        if exchange.path == "/api/v1/jobs" and exchange.method == "POST" and isinstance(told, dict) and "id" in told:
            theirs = [each for each in agents if json.loads(each.body)["job_id"] == told["id"]]
            agents = [each for each in agents if each not in theirs]
            yield from theirs


def test_there_is_a_recorded_version() -> None:
    assert VERSIONS


@pytest.mark.parametrize("version", VERSIONS)
def test_the_service_answers_old_requests_as_before(replay: Replay, version: str) -> None:
    asked = 0
    for exchange in in_order(version):
        if exchange.call is None:
            document = json.loads(exchange.body)
            replay.begin_attempt(document["job_id"], document["attempt"])
        answer = replay.send(exchange)
        what = f"{exchange.call or 'report'}: {exchange.method} {exchange.path}"
        assert answer.status_code == exchange.status, f"{what} was {exchange.status}: {answer.text}"
        for name, value in exchange.answer_headers.items():
            assert answer.headers[name].partition(";")[0].split("/")[0] == value.partition(";")[0].split("/")[0], what
        if exchange.answer_json() is not None:
            assert losses(exchange.answer_json(), answer.json()) == [], what
        asked += 1
    assert asked > 50
    require_known(replay, said_by_agents(version))


@pytest.mark.parametrize("version", VERSIONS)
def test_the_attempt_of_an_old_report_is_found_before_the_report_is_read(version: str) -> None:
    """Agents of the first release name their attempt only in the body. The service needs it to check the token."""
    for report in said_by_agents(version):
        document = json.loads(report.body)
        assert find_attempt(report.body.encode()) == AttemptKey(document["job_id"], document["attempt"])


def require_known(replay: Replay, agents: list[Exchange]) -> None:
    """Check that the API shows what the agents reported."""
    reported: dict[str, set[str]] = {}
    for report in agents:
        document = json.loads(report.body)
        kinds = reported.setdefault(replay.ids[document["job_id"]], set())
        kinds.update(json.loads(line)["kind"] for line in document["events"])
    assert any("snapshot.committed" in kinds for kinds in reported.values())

    def asked(job_id: str, what: str) -> list[dict[str, object]]:
        found: list[dict[str, object]] = replay.client.get(f"/api/v1/jobs/{job_id}/{what}").json()["items"]
        return found

    for job_id, kinds in reported.items():
        assert kinds <= {each["kind"] for each in asked(job_id, "events?limit=200")}
        assert asked(job_id, "attempts")
    short = next(job_id for job_id in reported if job_id.startswith("short-"))
    assert asked(short, "snapshots")
    assert asked(short, "workers")
    assert replay.client.get(f"/api/v1/jobs/{short}/metrics").json()["steps"]


@pytest.mark.parametrize(
    ("then", "now", "lost"),
    [
        ({"a": 1}, {}, ["/a is gone"]),
        ({"a": 1}, {"a": "1"}, ["/a was a number and is text"]),
        ({"items": [{"a": {}}]}, {"items": [{"a": []}]}, ["/items/0/a was an object and is a list"]),
        ({"a": True}, {"a": 1}, ["/a was true or false and is a number"]),
        ({"a": 1, "b": None}, {"a": 2.5, "b": {}, "c": 3}, []),
        ({"spent": {"node": 1}}, {"spent": {}}, []),
    ],
)
def test_losses_finds_missing_and_changed_fields(then: object, now: object, lost: list[str]) -> None:
    assert losses(then, now) == lost
