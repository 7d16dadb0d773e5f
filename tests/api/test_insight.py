"""`why` and `goodput` over HTTP."""

from __future__ import annotations

import json
import os
from dataclasses import replace
from datetime import timedelta

from orchestrator.domain.job.attempt import AttemptState
from orchestrator.domain.job.job import JobState
from tests.api.conftest import World
from tests.api.running import run
from tests.builders import make_batch, make_journal_event, make_progress
from trainer.contract.clock import render_time
from trainer.contract.failure import Failure, FailureKind
from trainer.contract.resource_sample import LastMinute, RankSample, Sample, render_sample


def test_the_time_of_a_waiting_job_is_queue_time(world: World) -> None:
    job_id = world.submit(topology={"nodes": "1", "workers_per_node": 2})
    world.clock.moment += timedelta(seconds=30)
    found = world.client.get(f"/api/v1/jobs/{job_id}/goodput").json()
    assert (found["bins"]["queue"], found["device_seconds"], found["goodput"]) == (60.0, 60.0, None)
    assert [stretch["bin"] for stretch in found["stretches"]] == ["queue"]


def test_why_shows_the_queue_of_a_waiting_job_and_names_only_jobs_of_its_project(world: World) -> None:
    holder = run(world, nodes="3", topology={"nodes": "3"})
    run(world, nodes="1", project="research")
    started = world.clock.now()
    world.start(holder, nodes="3", state=AttemptState.RUNNING, started_at=started)
    steps = [(step, make_progress(step, seconds=30 * step, total_steps=12)) for step in (1, 2)]
    world.journals.ingest([make_batch(holder, progress=steps)], arrived_at=started)
    job_id = world.submit(topology={"nodes": "2"})
    found = world.client.get(f"/api/v1/jobs/{job_id}/why").json()["wait"]
    ends = "2026-05-04T12:05:00Z"
    assert found["holders"] == [{"id": holder, "name": "demo", "state": "RUNNING", "devices": 3, "ends_by": ends}]
    assert (found["ahead"], found["other_devices"], found["starts_by"]) == (0, 1, ends)
    assert found["sentences"] == ["It starts within about 5 min if no job ahead of it slows down or fails."]
    assert world.client.get(f"/api/v1/jobs/{holder}/why").json()["wait"] is None


def test_why_shows_the_last_lines_of_the_failed_rank(world: World) -> None:
    job_id = world.submit()
    failure = Failure(kind=FailureKind.STORAGE, message="OSError: [Errno 28] No space left on device", rank=0)
    now = world.clock.now()
    world.start(job_id, state=AttemptState.FAILED, created_at=now, ended_at=now, failure=failure)
    log = world.root / job_id / "attempts/1/replica-0/1/g1/local-0/log"
    log.parent.mkdir(parents=True)
    log.write_text("loading\nOSError: [Errno 28] No space left on device\n")
    world.advance(job_id, JobState.STARTING, JobState.FAILED, reason="the budget is spent")
    found = world.client.get(f"/api/v1/jobs/{job_id}/why").json()
    assert found["verdict"].startswith("The budget is spent. Rank 0 had a storage failure at 12:00 UTC. OSError")
    assert found["cause"]["failure"]["kind"] == "storage"
    assert found["cause"]["last_lines"][-1:] == ["OSError: [Errno 28] No space left on device"]
    assert found["remedy"]["name"] == "disk full"


def test_why_shows_the_last_lines_of_the_generation_that_failed(world: World) -> None:
    job_id = world.submit()
    world.start(job_id, state=AttemptState.RUNNING, started_at=world.clock.now())
    world.advance(job_id, JobState.STARTING, JobState.RUNNING, reason="the workers are running")
    failed = make_journal_event("worker.failed", evidence={"kind": "hang", "message": "it hung", "rank": 0})
    world.journals.ingest([make_batch(job_id, events=[(10, failed)])], arrived_at=world.clock.now())
    world.write_log(job_id, "hangs\n", where="1/g1/local-0/log")
    world.write_log(job_id, "continues\n", where="1/g2/local-0/log")
    assert world.client.get(f"/api/v1/jobs/{job_id}/why").json()["cause"]["last_lines"] == ["hangs"]


def test_why_shows_the_innermost_frames_of_the_hung_rank_or_of_another_that_left_stacks(world: World) -> None:
    job_id = world.submit()
    failure = Failure(kind=FailureKind.HANG, message="rank 1 made no step for 60 s", rank=1)
    now = world.clock.now()
    world.start(job_id, state=AttemptState.FAILED, created_at=now, ended_at=now, failure=failure)
    started = make_journal_event("generation.started", evidence={"world_size": 2, "pids": {"0": 1, "1": 2}})
    world.journals.ingest([make_batch(job_id, events=[(10, started)])], arrived_at=now)
    head, frame = "Current thread 0x1 (most recent call first):", '  File "/src/train.py", line {} in {}'
    for rank in (0, 1):
        world.write_log(job_id, "working\n", where=f"1/g1/local-{rank}/log")
    world.write_log(job_id, "\n".join([head, frame.format(7, "all_reduce")]), where="1/g1/local-0/stacks.txt")

    def stacks() -> object:
        return world.client.get(f"/api/v1/jobs/{job_id}/why").json()["cause"]["stacks"]

    for place, evidence in enumerate(({"wish": 1, "stacks": {"0": "at line 7"}}, {"ranks": [0, 1]})):
        assert stacks() is None, "they were saved on request, at another time"
        saved = make_journal_event("stacks.saved", evidence=evidence)
        world.journals.ingest([make_batch(job_id, events=[(20 + place, saved)])], arrived_at=now)
    assert stacks() == {"rank": 0, "frames": ["all_reduce (train.py:7)"]}
    world.write_log(job_id, "\n".join([head, frame.format(8, "wait")]), where="1/g1/local-1/stacks.txt")
    assert stacks() == {"rank": 1, "frames": ["wait (train.py:8)"]}
    assert "wait (train.py:8)" in world.client.get(f"/jobs/{job_id}", headers={"Accept": "text/html"}).text
    raised = replace(failure, kind=FailureKind.APPLICATION, traceback="ValueError: x")
    world.start(job_id, 2, state=AttemptState.FAILED, created_at=now, ended_at=now, failure=raised)
    world.write_log(job_id, "\n".join([head, frame.format(9, "older")]), where="1/g1/local-1/stacks.txt", attempt=2)
    assert stacks() is None, "the traceback tells the place"


def test_why_compares_the_last_minute_of_a_rank_with_the_memory_limit(world: World) -> None:
    job_id = world.submit()
    minute = LastMinute(
        seconds=58.0,
        age_s=0.5,
        first_bytes=10**9,
        highest_bytes=39 * 10**8,
        node_bytes=39 * 10**8,
        limit_bytes=4 * 10**9,
        of_gpu=False,
    )
    failure = Failure(kind=FailureKind.HOST_OOM, message="the worker was killed", rank=0, last_minute=minute)
    now = world.clock.now()
    world.start(job_id, state=AttemptState.FAILED, created_at=now, ended_at=now, failure=failure)
    world.advance(job_id, JobState.STARTING, JobState.FAILED, reason="the budget is spent")
    told = "In its last 58 s, the memory of rank 0 rose from 1 GB to 3.9 GB. The limit is 4 GB."
    assert world.client.get(f"/api/v1/jobs/{job_id}/why").json()["cause"]["memory"] == told
    assert told in world.client.get(f"/jobs/{job_id}").text


def test_why_reads_the_last_minute_from_the_samples_if_the_agent_died_with_its_ranks(world: World) -> None:
    job_id, now = world.submit(), world.clock.now()
    failure = Failure(kind=FailureKind.HOST_OOM, message="it used more memory than its limit")
    world.start(job_id, state=AttemptState.FAILED, created_at=now, ended_at=now, failure=failure)
    world.advance(job_id, JobState.STARTING, JobState.FAILED, reason="the budget is spent")
    assert world.client.get(f"/api/v1/jobs/{job_id}/why").json()["cause"]["memory"] is None
    used = {0: 3_000_000_000, 30: 3_900_000_000}
    samples = [
        Sample(
            at=render_time(now + timedelta(seconds=second)),
            generation=1,
            ranks=(RankSample(rank=0, memory_bytes=bytes_), RankSample(rank=1, memory_bytes=5)),
        )
        for second, bytes_ in used.items()
    ]
    lines = [json.dumps(render_sample(each)) for each in samples]
    world.write_log(job_id, "\n".join(lines) + "\n", "1/resources.jsonl")
    told = "In its last 30 s, the memory of rank 0 rose from 3 GB to 3.9 GB."
    assert world.client.get(f"/api/v1/jobs/{job_id}/why").json()["cause"]["memory"] == told


def test_why_shows_the_last_output_of_a_script_without_reports(world: World) -> None:
    job_id = world.submit()
    world.start(job_id, state=AttemptState.RUNNING, started_at=world.clock.now())
    world.advance(job_id, JobState.STARTING, JobState.RUNNING, reason="the workers are running")
    printed = world.clock.now().timestamp()
    os.utime(world.write_log(job_id, "loading\n"), (printed, printed))
    world.clock.moment += timedelta(minutes=14)
    found = world.client.get(f"/api/v1/jobs/{job_id}/why").json()
    assert found["verdict"] == "The workers are running."
    assert found["quiet"] == (
        "The script reports no steps. Its last output was 14 min ago (rank 0). "
        "A hang is noticed once no worker prints, computes or reads for 15 min while one waits for another or for data."
    )
    assert found["last_output_at"] == "2026-05-04T12:00:00Z"
    assert "Its last output was 14 min ago" in world.client.get(f"/jobs/{job_id}").text


def test_the_last_output_is_unknown_without_a_shared_folder(world: World) -> None:
    cluster = world.clusters["local"]
    world.clusters["local"] = replace(cluster, shares_files=False)
    job_id = world.submit(launcher="torchrun")
    world.start(job_id, state=AttemptState.RUNNING, started_at=world.clock.now())
    world.advance(job_id, JobState.STARTING, JobState.RUNNING, reason="the workers are running")
    world.write_log(job_id, "fetched later\n")
    found = world.client.get(f"/api/v1/jobs/{job_id}/why").json()
    assert "It is not known when it last printed. Launcher torchrun does not watch for hangs" in found["quiet"]
    assert found["last_output_at"] is None


def test_workers_that_report_are_judged_by_their_reports(world: World) -> None:
    job_id = world.submit()
    world.start(job_id, state=AttemptState.RUNNING)
    world.advance(job_id, JobState.STARTING, JobState.RUNNING, reason="the workers are running")
    batch = make_batch(job_id, progress=[(10, make_progress())])
    world.journals.ingest([batch], arrived_at=world.clock.now())
    assert world.client.get(f"/api/v1/jobs/{job_id}/why").json()["quiet"] is None


def test_why_names_avoided_nodes_without_the_job_that_failed_there(world: World) -> None:
    job_id, fearless = world.submit(), world.submit(supervise={"exclude_bad_nodes": False})
    world.blame("node7", world.submit(name="other"), sentence="the other's secret trouble")
    told = world.client.get(f"/api/v1/jobs/{job_id}/why")
    until = f"{world.clock.now() + timedelta(hours=1):%Y-%m-%d %H:%M:%S} UTC"
    assert told.json()["avoids"] == [
        f"node node7 is avoided after a failure until {until}, or until `orchestrator nodes clear node7`"
    ]
    assert "trouble" not in told.text
    assert world.client.get(f"/api/v1/jobs/{fearless}/why").json()["avoids"] == []
    page = world.client.get(f"/jobs/{job_id}", headers={"Accept": "text/html"}).text
    assert "Node node7 is avoided after a failure" in page
    world.client.post("/api/v1/nodes/local/node7/clear")
    assert world.client.get(f"/api/v1/jobs/{job_id}/why").json()["avoids"] == []
