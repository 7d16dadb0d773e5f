"""The service under test. It requires tokens, holds jobs in every state and starts no new ones.

Its first jobs are real. Then an idle holder takes the cluster's lease, so every job that the test submits stays in the
queue.
"""

from __future__ import annotations

import secrets
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from deploy.dev.service import ThrowawayService
from orchestrator.client import Client
from orchestrator.domain.access.identity import Role
from orchestrator.domain.job.attempt import AttemptKey
from orchestrator.domain.job.worker_token import derive_worker_key, issue_worker_token
from orchestrator.identity.keys import read_keys
from orchestrator.store.engine import Database
from orchestrator.store.job_reader import JobReader
from orchestrator.store.lease_store import SqlLeaseStore
from orchestrator.store.tables import NodeFailureRow
from orchestrator.store.upgrade import upgrade
from orchestrator.wire.job_views import JobView

ADMIN = secrets.token_hex(16)
PROJECTS = ("default", "research")
_IDLE_HOLDER = "nobody who does anything"
_PATIENCE_S = 240.0
_DAY_S = 86400.0
_SPARE_JOBS = 4
_FAILED_NODE = "n1"
_TRAINING = {"data": "stdlib", "steps": 6, "global_batch": 2, "micro_batch": 1, "seq_len": 8}
_SLEEP = {"command": ["sleep", "86400"], "workdir": "/"}


@dataclass(frozen=True, slots=True, kw_only=True)
class Stage:
    """`known`: existing values of each path parameter. `spare_job_id` holds jobs that may be deleted."""

    service: ThrowawayService
    known: Mapping[str, list[str]]
    worker_token: str  # of an attempt that runs

    def token(self, role: str) -> str | None:
        """Return a new token of a role, as an admin's test may have revoked the last one. None for `nobody`."""
        if role in ("admin", "worker", "nobody"):
            return {"admin": ADMIN, "worker": self.worker_token, "nobody": None}[role]
        grants = {"*": Role.VIEWER} if role == "viewer" else {"default": Role(role), "research": Role.VIEWER}
        with Client(self.service.url, ADMIN) as client:
            return client.create_token(role, grants).token


@contextmanager
def set_up(root: Path, database_url: str | None) -> Iterator[Stage]:
    """`database_url` names an empty PostgreSQL database. None selects SQLite. Raises ServiceFailed, TimeoutError."""
    settings = {
        "ORCHESTRATOR_TOKEN": ADMIN,
        "ORCHESTRATOR_LOCAL_SLOTS": "6",
        "ORCHESTRATOR_POLL_S": "0.1",
        "ORCHESTRATOR_STOP_TIMEOUT_S": "3",
        "ORCHESTRATOR_REQUESTS_PER_S": "100000",  # an answer of 429 would prove nothing
        **({} if database_url is None else {"ORCHESTRATOR_DATABASE_URL": database_url}),
    }
    url = database_url or f"sqlite:///{root.resolve() / 'orchestrator.db'}"
    if database_url is not None:
        upgrade(url)
    with ThrowawayService(root, settings) as service:
        with Client(service.url, ADMIN) as client:
            known = _fill(client)
        service.stop()
        token = _retire_supervisor(url, root, known["job_id"][0])
        service.start()
        yield Stage(service=service, known=known, worker_token=token)


def _fill(client: Client) -> dict[str, list[str]]:
    """Create a job in each lasting state, and one of each resource that belongs to a job."""
    running = client.submit(_spec("running", _SLEEP))
    trained = client.submit(_spec("trained", {"trainer": _TRAINING, "workdir": "/"}, snapshot={"interval": "2"}))
    failed = client.submit(_spec("failed", {"command": ["false"], "workdir": "/"}, project="research"))
    rests = client.submit(_spec("rests", _SLEEP))
    _until(client, trained, lambda job: job.ended)
    _until(client, failed, lambda job: job.ended)
    _until(client, rests, lambda job: job.state == "RUNNING")
    client.suspend(rests.id)
    cancelled, *spare = (client.submit(_spec("cancelled", _SLEEP)) for _ in range(1 + _SPARE_JOBS))
    for job in (cancelled, *spare):
        client.cancel(job.id)
    _until(client, rests, lambda job: job.state == "SUSPENDED")
    for job in (cancelled, *spare):
        _until(client, job, lambda job: job.ended)
    _until(client, running, lambda job: job.state == "RUNNING")
    array = client.submit_array(_spec("array", _SLEEP, sweep={"product": {"run.env.N": [1, 2]}}))
    client.cancel_array(array.id)
    token = client.create_token("known", {"research": Role.VIEWER})
    webhook = client.create_webhook("known", "https://hooks.example/jobs")
    for project in PROJECTS:
        client.store_secret("WANDB_API_KEY", "of nobody", project=project)
    return {
        "job_id": [job.id for job in (running, trained, failed, rests, cancelled)],
        "array_id": [array.id],
        "token_id": [token.id],
        "project": list(PROJECTS),
        "name": ["WANDB_API_KEY"],
        "cluster": ["local"],
        "node": [_FAILED_NODE],
        "webhook": [webhook.name],
        "spare_job_id": [job.id for job in spare],
    }


def _spec(name: str, run: Mapping[str, Any], **more: object) -> dict[str, Any]:
    budgets = dict.fromkeys(("application", "launch", "node", "hang", "storage"), 0)
    return {"name": name, "run": run, "supervise": {"budgets": budgets}, **more}


def _until(client: Client, job: JobView, holds: Callable[[JobView], bool]) -> None:
    deadline = time.monotonic() + _PATIENCE_S
    while not holds(seen := client.job(job.id)):
        if time.monotonic() > deadline:
            raise TimeoutError(f"job {job.id} is still {seen.state}: {seen.reason}")
        time.sleep(0.1)


def _retire_supervisor(url: str, root: Path, running: str) -> str:
    """Take the lease, record a node failure and return the token of the running job's agents."""
    database = Database(url)
    try:
        if SqlLeaseStore(database).acquire("local", _IDLE_HOLDER, ttl_s=_DAY_S) is None:
            raise RuntimeError("the service that has stopped did not give its lease back")
        attempt = JobReader(database).standing(running).attempt
        assert attempt is not None
        mark = {"cluster": "local", "node": _FAILED_NODE, "job_id": running, "attempt": attempt.key.number}
        with database.write() as session:
            session.add(NodeFailureRow(**mark, at=datetime.now(UTC), kind="node", sentence="it was lost"))
        worker_key = derive_worker_key(read_keys(root / "secret.key")[0])
        return issue_worker_token(worker_key, AttemptKey(running, attempt.key.number), attempt.nonce)
    finally:
        database.dispose()
