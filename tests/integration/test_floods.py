"""A job that writes and reports without pause fills neither the database of a real service nor its passes."""

from __future__ import annotations

import json
from collections.abc import Iterator

import httpx
import pytest
from sqlalchemy import text

from deploy.dev.service import ThrowawayService
from orchestrator.client import Client
from orchestrator.store.engine import Database
from tests.jobs import ended, python_job, running, until

pytestmark = pytest.mark.timeout(300)

FOREVER = "import time; time.sleep(600)"
# With its environment alone, a script can write to its own attempt's folder.
FLOOD = """
import json, os, pathlib
mine = pathlib.Path(os.environ["ORCHESTRATOR_REPLICA_DIR"])
never = mine.parent.parent / "replica-7" / "1"
never.mkdir(parents=True)
line = {"at": "2026-11-20T12:00:00Z", "generation": 1, "sentence": "noise"}
kinds = ("noise", "generation.started", "snapshot.committed")
text = "".join(json.dumps(line | {"kind": kind}) + "\\n" for kind in kinds)
for folder in (mine, never):
    with (folder / "events.jsonl").open("a") as file:
        file.write(text * 20_000)
"""


@pytest.fixture
def database(service: ThrowawayService) -> Iterator[Database]:
    with Database(f"sqlite:///{service.root / 'orchestrator.db'}") as database:
        yield database


def count(database: Database, table: str, where: str = "1 = 1") -> int:
    with database.read() as session:
        return session.execute(text(f"SELECT count(*) FROM {table} WHERE {where}")).scalar_one()


def test_a_report_of_a_replica_that_was_never_launched_is_refused_and_not_stored(
    service: ThrowawayService, client: Client, database: Database
) -> None:
    job_id = until(client, client.submit(python_job(FOREVER)).id, running).id
    line = '{"at": "2026-11-20T12:00:00Z", "kind": "noise", "sentence": "x"}'
    report = {"job_id": job_id, "attempt": 1, "events": [line], "events_to": len(line) + 1}
    for replica, incarnation in ((1, 1), (10**9, 1), (0, 10**9)):
        never = {**report, "replica": replica, "incarnation": incarnation}
        answer = httpx.post(f"{service.url}/api/v1/reports", json=never)
        assert answer.status_code == 422, answer.text
        assert "attempt 1" in answer.text.lower()
        assert count(database, "events", "kind = 'noise'") == 0
        assert count(database, "journals", f"replica = {replica} AND incarnation = {incarnation}") == 0
    client.cancel(job_id)


@pytest.mark.long
def test_a_flood_of_events_stops_at_a_reported_limit_and_the_job_ends_as_usual(
    client: Client, database: Database
) -> None:
    job = until(client, client.submit(python_job(FLOOD)).id, ended, timeout_s=240)
    assert (job.state, job.attempts) == ("SUCCEEDED", 1)
    assert count(database, "events", "kind = 'noise'") < 11_000
    assert count(database, "events", "kind = 'generation.started'") < 17_000
    assert count(database, "events", "kind = 'limit.reached' AND sentence LIKE '%Later ones are not stored.%'") == 1
    assert count(database, "journals", "replica = 7") == 0
    assert job.reason


@pytest.mark.long
def test_names_of_metrics_that_change_with_each_step_stop_at_a_limit(
    service: ThrowawayService, client: Client, database: Database
) -> None:
    job_id = until(client, client.submit(python_job(FOREVER)).id, running).id
    offset = 0
    for part in range(4):
        lines = [
            json.dumps(
                {
                    "at": "2026-11-20T12:00:00Z",
                    "rank": 0,
                    "generation": 1,
                    "step": part * 300 + step,
                    "metrics": {"loss": 1.0} | {f"noise-{part}-{step}-{place}": 1.0 for place in range(3)},
                }
            )
            for step in range(300)
        ]
        length = sum(len(line) + 1 for line in lines)
        report = {"job_id": job_id, "attempt": 1, "replica": 0, "incarnation": 2, "progress": lines}
        report |= {"progress_from": offset, "progress_to": offset + length}
        offset += length
        answer = httpx.post(f"{service.url}/api/v1/reports", json=report)
        assert answer.status_code == 200, answer.text
    with database.read() as session:
        found = session.execute(text("SELECT measured FROM metrics")).scalars().all()
    names = {name for measured in found for name in json.loads(measured)}
    assert len(found) == 1200, "each step has a loss"
    assert "loss" in names
    assert len(names) <= 501
    client.cancel(job_id)
