"""Reports of agents: how many a second, and how responsive the service is meanwhile."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from concurrent.futures import Future
from datetime import UTC, datetime
from functools import partial

from benchmarks.control_plane.load import Clients, Outcome, ask, looks, render_post
from benchmarks.control_plane.stored import UNSUPERVISED, WORKERS, add_running, copy, make_job, make_line, make_spec
from benchmarks.control_plane.world import Usage
from orchestrator.domain.job.job import JobState
from orchestrator.store.engine import Database
from trainer.contract.progress import render_progress

REPLICAS = 1250  # of 8 workers: 10,000 of them
PACE_PER_S = 250  # each replica every 5 s
_FIRST = 5_000_000  # number of the first copy
_READS_PER_S = 20
_FIRST_STEP = 10_000


def add_reporters(database: Database) -> list[str]:
    """The jobs that report, one replica each; nothing of theirs is stored yet."""
    spec = make_spec(cluster=UNSUPERVISED, topology={"workers_per_node": WORKERS})
    add_running(database, make_job("reporter", spec, JobState.RUNNING, datetime.now(UTC)), steps=0)
    return copy(database, "reporter", range(_FIRST, _FIRST + REPLICAS))


def measure_reports(
    clients: Clients, url: str, pid: int, ids: Sequence[str], rounds: int, paced_s: int
) -> dict[str, object]:
    figures: dict[str, object] = {}
    clients.run(partial(_reports, ids, 0, REPLICAS, 1), connections=4)
    usage = Usage(pid)
    outcome = clients.run(partial(_reports, ids, 1, REPLICAS * rounds, 1), connections=16)
    figures["16 clients"] = {**outcome.figures(), **usage.figures()}
    usage = Usage(pid)
    paced = partial(_reports, ids, 1 + rounds, PACE_PER_S * paced_s, 1)
    running: Future[Outcome] = clients.start(paced, connections=64, rate=PACE_PER_S)
    meanwhile = clients.run(partial(looks, ids, paced_s * _READS_PER_S), connections=8, rate=_READS_PER_S)
    figures["paced"] = {**running.result().figures(), **usage.figures()}
    figures["list and show meanwhile"] = meanwhile.figures()
    _, job = ask(url, f"/api/v1/jobs/{ids[0]}")
    assert job["step"] == _FIRST_STEP + rounds + -(-PACE_PER_S * paced_s // REPLICAS), job  # nothing was left out
    return figures


def _reports(ids: Sequence[str], first_round: int, count: int, lines: int) -> Iterator[bytes]:
    """Round after round of all replicas: each worker tells of one step more, at the journal's next byte."""
    length = 0
    for number in range(count):
        job, step = ids[number % len(ids)], first_round + number // len(ids)
        told = [_render_line(step * lines + line, rank) for line in range(lines) for rank in range(WORKERS)]
        length = sum(len(line) + 1 for line in told)  # the same of every report: numbers have a fixed width
        yield render_post(
            "/api/v1/reports",
            {
                "version": 1,
                "job_id": job,
                "attempt": 1,
                "replica": 0,
                "incarnation": 2,
                "progress_from": step * length,
                "progress": told,
                "progress_to": (step + 1) * length,
            },
        )


def _render_line(step: int, rank: int) -> str:
    return json.dumps(render_progress(make_line(_FIRST_STEP + step, rank)))
