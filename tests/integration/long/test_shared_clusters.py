"""Two services share four clusters of one PostgreSQL while jobs run on each of them."""

from __future__ import annotations

import shutil
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import pytest

from deploy.dev.databases import scratch_database
from deploy.dev.service import ThrowawayService
from orchestrator.client import Client
from orchestrator.store.engine import Database
from orchestrator.store.lease_store import SqlLeaseStore
from orchestrator.store.upgrade import upgrade
from tests.elastic.harness import wait_for
from tests.jobs import ended, python_job, running, until

CLUSTERS = ("c0", "c1", "c2", "c3")
# Each rank waits for a file, so that all jobs run while the clusters change their supervisor.
WAIT = "import os, time\nwhile not os.path.exists({gate!r}): time.sleep(0.1)"


class Services:
    def __init__(self, folder: Path, url: str) -> None:
        config = folder / "orchestrator.toml"
        config.write_text("".join(f'[clusters.{name}]\nbackend = "local"\n' for name in CLUSTERS))
        settings = {
            "ORCHESTRATOR_CONFIG": str(config),
            "ORCHESTRATOR_DATABASE_URL": url,
            "ORCHESTRATOR_LEASE_S": "4",
            "ORCHESTRATOR_LOCAL_SLOTS": "4",
            "ORCHESTRATOR_POLL_S": "0.1",
            "ORCHESTRATOR_STOP_TIMEOUT_S": "2",
        }
        root = folder / "runs"
        self.first = ThrowawayService(root, settings, name="first")
        self.second = ThrowawayService(root, settings, name="second")
        self._database = Database(url)

    def end(self) -> None:
        self.first.kill()
        self.second.end()
        self._database.dispose()

    def tokens(self) -> dict[str, int]:
        return {each.lease.cluster: each.lease.token for each in SqlLeaseStore(self._database).leases()}

    def shares(self) -> Counter[int]:
        """How many clusters each process supervises."""
        standings = SqlLeaseStore(self._database).leases()
        return Counter(int(each.lease.holder.split(":")[1]) for each in standings if not each.expired)

    def await_shares(self, shares: dict[ThrowawayService, int]) -> None:
        expected = {service.pid: count for service, count in shares.items()}
        wait_for(lambda: self.shares() == expected, f"shares {expected}")


@pytest.fixture
def services(postgres: str, tmp_path: Path) -> Iterator[Services]:
    with scratch_database(postgres) as url:
        upgrade(url)
        both = Services(tmp_path, url)
        try:
            both.first.start()
            yield both
        finally:
            both.end()
            shutil.rmtree(tmp_path / "runs", ignore_errors=True)


def test_two_services_supervise_two_clusters_each_and_no_job_notices(services: Services, tmp_path: Path) -> None:
    gate = tmp_path / "gate"
    services.await_shares({services.first: 4})
    with Client(services.first.url) as client:
        before = [client.submit(python_job(WAIT.format(gate=str(gate)), cluster=name)).id for name in CLUSTERS]
        for job_id in before:
            until(client, job_id, running)
    services.second.start()
    services.await_shares({services.first: 2, services.second: 2})
    with Client(services.second.url) as client:
        meanwhile = [client.submit(python_job("pass", cluster=name)).id for name in CLUSTERS]
        for job_id in meanwhile:
            assert until(client, job_id, ended).state == "SUCCEEDED"
        shared = services.tokens()
        services.first.kill()
        services.await_shares({services.second: 4})
        taken = services.tokens()
        assert sorted(taken[name] - shared[name] for name in CLUSTERS) == [0, 0, 1, 1], "only the killed one's moved"
        assert [client.job(job_id).state for job_id in before] == ["RUNNING"] * 4
        gate.touch()
        for job_id in before:
            done = until(client, job_id, ended)
            assert (done.state, done.attempts, done.restarts) == ("SUCCEEDED", 1, 0)
        for job_id in before + meanwhile:
            events = [(event.kind, event.attempt, event.sentence) for event in client.events(job_id)]
            assert len(events) == len(set(events)), events
            assert Counter(kind for kind, _, _ in events)["job.submitted"] == 1
