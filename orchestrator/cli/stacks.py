"""`stacks`: the current Python stacks of a running job, or those that were saved of an ended one."""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from itertools import groupby
from typing import Annotated

import typer

from orchestrator.cli.common import AsJson, JobId, find_job, print_items, print_json, writing
from orchestrator.cli.terminal import echo, echo_lines, say
from orchestrator.client import Client
from orchestrator.client.watch import LABEL
from orchestrator.domain.errors import NotFound, Refused
from orchestrator.domain.explanation.frames import arrange_stacks
from orchestrator.wire.history_views import StacksView
from orchestrator.wire.job_views import JobView

_LOOK_EVERY_S = 0.3


def stacks(
    job_id: JobId,
    rank: Annotated[int | None, typer.Option(metavar="RANK", min=0, help="Show only this rank.")] = None,
    wait: Annotated[float, typer.Option(metavar="SECONDS", min=0, help="Seconds to wait for all ranks.")] = 20.0,
    as_json: AsJson = False,
) -> None:
    """Show the Python stacks of a job's ranks.

    Training continues. The main thread comes first. Only --json shows the frames of the launcher. Of a job that has
    ended, show the stacks that were saved when a worker hung or was killed. Exit status 2: no rank answered in time, or
    none were saved.
    """
    with writing() as client:
        job = find_job(client, job_id)
        if job.ended:
            _print_saved(_find_saved(client, job, rank), job, as_json=as_json)
            return
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
        for line in arrange_stacks((each.text or "it did not answer").splitlines()):
            echo(f"  {line}" if line else "")
    missing = sorted(expected - {each.rank for each in found})
    if missing:
        say(f"no answer from rank{'s' if len(missing) > 1 else ''} {', '.join(map(str, missing))}", err=True)


def _find_saved(client: Client, job: JobView, rank: int | None) -> Sequence[str]:
    """Return the lines of the newest attempt with saved stacks."""
    for attempt in range(job.attempts, 0, -1):
        with suppress(NotFound):  # the attempt has no such rank
            lines = list(client.whole_log(job.id, attempt=attempt, rank=rank, stream="stacks"))
            if lines:
                return lines
    return ()


def _print_saved(lines: Sequence[str], job: JobView, *, as_json: bool) -> None:
    if not lines:
        raise Refused(f"{job.id} has ended, and no stacks were saved: no worker hung or had to be killed")
    if as_json:
        print_json({"job": job.id, "lines": list(lines)})
    else:
        echo_lines(_arrange_labeled(lines))


def _arrange_labeled(lines: Sequence[str]) -> Iterator[str]:
    for label, group in groupby(lines, key=_label_of):
        yield from (label + line for line in arrange_stacks([line.removeprefix(label) for line in group]))


def _label_of(line: str) -> str:
    label = LABEL.match(line)
    return "" if label is None else label[0]


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
