"""A job that runs."""

from __future__ import annotations

from typing import Any

from orchestrator.domain.job.attempt import AttemptState
from orchestrator.domain.job.job import JobState
from tests.api.conftest import World

RUNNING = (JobState.STARTING, JobState.RUNNING)


def run(world: World, *, nodes: str = "1", **fields: Any) -> str:
    """Submit a job with a running attempt on `nodes` nodes; returns its id."""
    job_id = world.submit(**fields)
    world.advance(job_id, *RUNNING)
    world.start(job_id, state=AttemptState.RUNNING, nodes=nodes)
    return job_id
