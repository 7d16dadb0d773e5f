"""`stacks`: the current Python stacks of a running job."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from typing import Annotated

import typer

from orchestrator.cli.common import AsJson, JobId, find_job, print_items, writing
from orchestrator.cli.terminal import echo
from orchestrator.client import Client
from orchestrator.domain.errors import Refused
from orchestrator.wire.history_views import StacksView

_LOOK_EVERY_S = 0.3


def stacks(
    job_id: JobId,
    rank: Annotated[int | None, typer.Option(min=0, help="Show only this rank.")] = None,
    wait: Annotated[float, typer.Option(min=0, help="Seconds to wait for all ranks.")] = 20.0,
    as_json: AsJson = False,
) -> None:
    """Show the Python stacks of a running job's ranks.

    Training continues. Exit status 2: no rank answered in time.
    """
    with writing() as client:
        job = find_job(client, job_id)
        before = {each.rank: each.wish or 0 for each in client.stacks(job.id)}
        asked = client.ask_stacks(job.id, rank=rank)
        expected = {rank} if rank is not None else set(range(asked.world_size or 0))
        found = _await(client, job.id, expected, before, rank=rank, wait_s=wait)
    if not found:
        raise Refused(f"no rank of {job.id} answered within {wait:g} s; the job continues, so try again")
    if as_json:
        print_items(found)
        return
    for each in found:
        echo(f"rank {each.rank}, attempt {each.attempt}, generation {each.generation}, {each.at:%H:%M:%S} UTC")
        for line in (each.text or "it did not answer").splitlines():
            echo(f"  {line}")
    missing = sorted(expected - {each.rank for each in found})
    if missing:
        echo(f"no answer from rank{'s' if len(missing) > 1 else ''} {', '.join(map(str, missing))}", err=True)


def _await(
    client: Client, job_id: str, expected: set[int], before: Mapping[int, int], *, rank: int | None, wait_s: float
) -> Sequence[StacksView]:
    """Return the stacks of later requests than `before`. Waits for every expected rank, at most `wait_s`."""
    deadline = time.monotonic() + wait_s
    while True:
        answers = [each for each in client.stacks(job_id, rank=rank) if (each.wish or 0) > before.get(each.rank, 0)]
        if (expected and expected <= {each.rank for each in answers}) or time.monotonic() >= deadline:
            return answers
        time.sleep(_LOOK_EVERY_S)
