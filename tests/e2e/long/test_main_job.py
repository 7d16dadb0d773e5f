"""The bundled trainer with a real service: kills, damaged snapshots, lost replicas and missing data."""

from __future__ import annotations

import os
import shutil
from pathlib import Path
from typing import Any

import pytest

from deploy.dev.demo import steps_of
from deploy.dev.killing import kill_at_once
from deploy.dev.service import ThrowawayService
from orchestrator.client import Client
from orchestrator.wire.job_views import JobView
from tests.elastic.harness import wait_for
from tests.jobs import ended, training_job, until

pytestmark = pytest.mark.timeout(700)

EXAMPLES = Path(__file__).parents[3] / "docs" / "examples"
STEPS = 80


def training(**trainer: Any) -> dict[str, Any]:
    config = {"steps": STEPS, "global_batch": 8, "micro_batch": 4, "seq_len": 32, **trainer}
    return training_job(workers=2, snapshot={"interval": "10", "keep": 8}, **config)


def curve(service: ThrowawayService, job: JobView) -> dict[int, float]:
    """The last loss of each step."""
    return {step.step: step.loss for step in steps_of(service, job.id)}


def at_step(client: Client, job_id: str, step: int) -> JobView:
    return until(client, job_id, lambda job: (job.step or 0) >= step or job.state.terminal)


def kill(service: ThrowawayService, *, only_rank: int | None = None) -> None:
    kill_at_once(each.pid for each in service.processes() if only_rank is None or each.local_rank == only_rank)


@pytest.mark.smoke
def test_a_damaged_snapshot_is_quarantined_and_the_previous_one_is_restored(
    service: ThrowawayService, client: Client
) -> None:
    job = client.submit(training(steps=4 * STEPS))
    at_step(client, job.id, 45)
    until(client, job.id, lambda seen: seen.newest_snapshot is not None)
    kill(service)
    folder = service.root / job.id / "snapshots"
    newest = sorted(path for path in folder.iterdir() if (path / "MANIFEST.json").exists())[-1]
    shard = max(newest.glob("*.distcp"), key=lambda path: path.stat().st_size)
    with shard.open("r+b") as file:
        file.seek(shard.stat().st_size // 2)
        byte = file.read(1)
        file.seek(-1, os.SEEK_CUR)
        file.write(bytes([byte[0] ^ 0x10]))
    done = until(client, job.id, ended, timeout_s=300)
    events = list(client.events(job.id))
    quarantined = [event for event in events if event.kind == "snapshot.quarantined"]
    restored = [event for event in events if event.kind == "restored"]
    assert done.state == "SUCCEEDED", done.reason
    assert [shard.name in event.sentence for event in quarantined] == [True]
    assert newest.name not in restored[-1].sentence
    assert {snapshot.state for snapshot in client.snapshots(job.id) if snapshot.name == newest.name} == {"quarantined"}


def test_a_job_with_only_damaged_snapshots_fails(service: ThrowawayService, client: Client) -> None:
    spec = training(steps=10 * STEPS) | {"supervise": {"backoff_s": [0.1, 0.2], "budgets": {"storage": 0}}}
    job = client.submit(spec)
    at_step(client, job.id, 25)
    kill(service)
    for manifest in (service.root / job.id / "snapshots").glob("*/MANIFEST.json"):
        for shard in manifest.parent.glob("*.distcp"):
            os.truncate(shard, 10)
    failed = until(client, job.id, ended, timeout_s=300)
    assert failed.state == "FAILED"
    assert failed.failure is not None
    assert failed.failure.kind == "storage"


def test_a_retry_restores_the_named_snapshot_once(service: ThrowawayService, client: Client) -> None:
    job = until(client, client.submit(training(steps=60)).id, ended)
    chosen = next(snapshot for snapshot in client.snapshots(job.id) if snapshot.step == 20)
    client.retry(job.id, restore_from=chosen.name, patch={"run": {"trainer": {"learning_rate": 5e-4}}})
    at = until(client, job.id, lambda seen: seen.attempts == 2 and (seen.step or 0) in range(35, 60))
    kill(service, only_rank=1)
    done = until(client, job.id, ended, timeout_s=300)
    restored = [event for event in client.events(job.id) if event.kind == "restored"]
    assert at.step is not None
    assert done.state == "SUCCEEDED"
    assert chosen.name in restored[0].sentence
    assert chosen.name not in restored[1].sentence


@pytest.mark.smoke
def test_an_elastic_job_continues_without_a_lost_replica(service: ThrowawayService, client: Client) -> None:
    spec = training(steps=3 * STEPS) | {"topology": {"nodes": "1:2", "workers_per_node": 1}}
    job = client.submit(spec)
    at_step(client, job.id, 25)
    kill_at_once(process.pid for process in service.processes() if process.replica == 1)
    done = until(client, job.id, ended, timeout_s=300)
    assert (done.state, done.attempts, done.world_size) == ("SUCCEEDED", 1, 1), done.reason
    assert sorted(curve(service, done)) == list(range(1, 3 * STEPS + 1))


def test_a_script_without_our_imports_is_restarted_and_continues(
    service: ThrowawayService, client: Client, tmp_path: Path
) -> None:
    shutil.copy(EXAMPLES / "user_ddp.py", tmp_path)
    snapshot = tmp_path / "own.pt"
    run = {"script": "user_ddp.py", "args": ["--steps", "300", "--snapshot", str(snapshot)], "workdir": str(tmp_path)}
    job = client.submit({"name": "own", "run": run, "topology": {"workers_per_node": 2}})
    wait_for(snapshot.exists, "snapshot of the script")
    kill(service, only_rank=0)
    done = until(client, job.id, ended, timeout_s=300)
    assert done.state == "SUCCEEDED"
    assert (done.attempts, done.restarts) == (1, 1)
    assert "ours" not in (EXAMPLES / "user_ddp.py").read_text().replace("of ours", "")


def test_missing_data_fails_the_job_with_the_file(service: ThrowawayService, client: Client, tmp_path: Path) -> None:
    text = tmp_path / "text.txt"
    text.write_text("some text\n" * 1000)
    blocker = client.submit(
        {"name": "blocker", "run": {"command": ["sleep", "3"]}, "topology": {"workers_per_node": 4}}
    )
    job = client.submit(training(data=str(text)))
    text.unlink()
    failed = until(client, job.id, ended, timeout_s=300)
    assert failed.state == "FAILED"
    assert str(text) in failed.reason
    assert until(client, blocker.id, ended).state == "SUCCEEDED"
