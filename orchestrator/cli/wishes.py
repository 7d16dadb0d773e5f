"""What may be wished of a job. Repeating a wish changes nothing and tells the same."""

from __future__ import annotations

from typing import Annotated

import typer

from orchestrator.cli.common import AsJson, JobId, find_job, print_json, writing
from orchestrator.cli.render import clean
from orchestrator.domain.job import JobState
from orchestrator.wire import JobView


def cancel(job_id: JobId, as_json: AsJson = False) -> None:
    """End a job."""
    with writing() as client:
        job = client.cancel(find_job(client, job_id).id)
    _tell(job, "is being cancelled" if job.cancelling else clean(job.reason), as_json)


def suspend(job_id: JobId, as_json: AsJson = False) -> None:
    """Stop a job at a snapshot until it is resumed."""
    with writing() as client:
        job = client.suspend(find_job(client, job_id).id)
    _tell(job, "is being suspended" if job.suspending else clean(job.reason), as_json)


def resume(job_id: JobId, as_json: AsJson = False) -> None:
    """Let a suspended job go on."""
    with writing() as client:
        job = client.resume(find_job(client, job_id).id)
    _tell(job, "goes back into the queue" if job.state is JobState.SUSPENDED else clean(job.reason), as_json)


def retry(
    job_id: JobId,
    restore_from: Annotated[
        str | None, typer.Option(metavar="SNAPSHOT", help="One of `orchestrator snapshots ID`; default: the newest.")
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Give a job another attempt."""
    with writing() as client:
        job = client.retry(find_job(client, job_id).id, restore_from=restore_from)
    _tell(job, f"another attempt is asked for; watch it: orchestrator show {job.id} --follow", as_json)


def snapshot(job_id: JobId, as_json: AsJson = False) -> None:
    """Take a snapshot of a running job now."""
    with writing() as client:
        job = client.snapshot(find_job(client, job_id).id)
    _tell(job, f"a snapshot is asked for; see them: orchestrator snapshots {job.id}", as_json)


def scale(
    job_id: JobId,
    nodes: Annotated[str, typer.Argument(metavar="NODES", help="A number, or a range as 2:8.")],
    as_json: AsJson = False,
) -> None:
    """Give a job another number of nodes, or a range as 2:8."""
    with writing() as client:
        job = client.scale(find_job(client, job_id).id, nodes)
    when = "goes on with them from a snapshot" if "scale" in job.pending else "has them from its next attempt on"
    _tell(job, f"{job.asked} nodes are asked for; it {when if job.nodes != job.asked else 'has them'}", as_json)


def _tell(job: JobView, sentence: str, as_json: bool) -> None:
    if as_json:
        print_json(job)
    else:
        typer.echo(f"{job.id} {job.state}: {sentence}")
