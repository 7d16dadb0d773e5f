"""Requests to a job. They are idempotent."""

from __future__ import annotations

import sys
from typing import Annotated, Literal

import typer

from orchestrator.cli.common import NO_SNAPSHOTS, AsJson, JobId, find_job, print_json, writing
from orchestrator.cli.spec import read_patch
from orchestrator.cli.terminal import say
from orchestrator.domain.counted import counted
from orchestrator.domain.errors import Refused
from orchestrator.domain.job.job import JobState
from orchestrator.domain.specs.beginning import tell_beginning
from orchestrator.domain.terminal import clean_line
from orchestrator.wire.job_views import JobView
from trainer.contract.chaos import Fault


def cancel(job_id: JobId, as_json: AsJson = False) -> None:
    """Cancel a job."""
    with writing() as client:
        job = client.cancel(find_job(client, job_id).id)
    _print_result(job, "is being cancelled" if job.cancelling else job.reason, as_json)


def delete(
    job_id: JobId,
    snapshots: Annotated[
        Literal["keep", "delete"], typer.Option(help="Keep or delete the job's folder with its snapshots and logs.")
    ] = "keep",
    yes: Annotated[bool, typer.Option("--yes", "-y", help="Do not ask for confirmation.")] = False,
    as_json: AsJson = False,
) -> None:
    """Delete the record of a job that has ended."""
    with writing() as client:
        job = find_job(client, job_id)
        what = "its record, its snapshots and its logs" if snapshots == "delete" else "its record"
        if not yes and not (sys.stdin.isatty() and typer.confirm(clean_line(f"Delete {job.id}: {what}?"), err=True)):
            raise Refused(f"nothing was deleted; --yes confirms that you want to delete {what}")
        deletion = client.delete(job.id, snapshots=snapshots)
    if as_json:
        print_json(deletion)
    else:
        left = "its files will be deleted soon" if deletion.files_due else "its files are kept"
        where = "".join(f"\n  {folder}" for folder in deletion.folders)
        say(f"{deletion.job_id} is deleted; {left}{where}")


def suspend(job_id: JobId, as_json: AsJson = False) -> None:
    """Take a snapshot if possible, and stop a job until it is resumed."""
    with writing() as client:
        job = client.suspend(find_job(client, job_id).id)
    _print_result(job, f"is being suspended{_warn_of_no_snapshot(job)}" if job.suspending else job.reason, as_json)


def resume(job_id: JobId, as_json: AsJson = False) -> None:
    """Resume a suspended job."""
    with writing() as client:
        job = client.resume(find_job(client, job_id).id)
    _print_result(job, "returns to the queue" if job.state is JobState.SUSPENDED else job.reason, as_json)


def retry(
    job_id: JobId,
    restore_from: Annotated[
        str | None,
        typer.Option(metavar="SNAPSHOT", help="A snapshot of `orchestrator snapshots JOB`. Default: the newest."),
    ] = None,
    patch: Annotated[
        str | None, typer.Option(metavar="FILE", help="Fields to change, as YAML or JSON. null removes a field.")
    ] = None,
    changes: Annotated[
        list[str] | None, typer.Option("--set", metavar="KEY.PATH=VALUE", help="Change a field. Repeatable.")
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Start another attempt of a job."""
    changed = read_patch(patch, changes or ())
    with writing() as client:
        job = client.retry(find_job(client, job_id).id, restore_from=restore_from, patch=changed)
    _print_result(job, f"another attempt is requested; watch it: orchestrator show {job.id} --follow", as_json)


def snapshot(job_id: JobId, as_json: AsJson = False) -> None:
    """Take a snapshot of a running job now."""
    with writing() as client:
        job = client.snapshot(find_job(client, job_id).id)
    next_step = f"list them: orchestrator snapshots {job.id}" if job.takes_snapshots else NO_SNAPSHOTS
    _print_result(job, f"a snapshot is requested; {next_step}", as_json)


def chaos(
    job_id: JobId,
    fault: Annotated[Fault, typer.Argument(metavar="FAULT", help=f"One of {', '.join(each.value for each in Fault)}.")],
    rank: Annotated[
        int | None, typer.Option(metavar="RANK", min=0, help="The rank to inject the fault into. Default: the last.")
    ] = None,
    node: Annotated[
        str | None,
        typer.Option(metavar="NODE", help="The node to inject the fault into: its number in the job, or its name."),
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Inject a fault into a running job, to test its recovery."""
    with writing() as client:
        job = client.chaos(find_job(client, job_id).id, fault.value, rank=rank, node=node)
    _print_result(job, f"{fault.value} is requested; see its effect: orchestrator why {job.id}", as_json)


def scale(
    job_id: JobId,
    nodes: Annotated[str, typer.Argument(metavar="NODES", help="A number, or a range such as 2:8.")],
    as_json: AsJson = False,
) -> None:
    """Change a job's number of nodes, or its range."""
    with writing() as client:
        job = client.scale(find_job(client, job_id).id, nodes)
    _print_result(job, _describe_size(job), as_json)


def _describe_size(job: JobView) -> str:
    size = counted(job.asked, "node")
    if job.nodes == job.asked:
        return f"it has {size}"
    if "scale" in job.pending:
        return f"it will continue with {size}{_warn_of_no_snapshot(job) or ' from a snapshot'}"
    return f"its next attempt will have {size}"


def _warn_of_no_snapshot(job: JobView) -> str:
    if job.takes_snapshots:
        return ""
    return f"; it has no snapshot, so it will start from {tell_beginning(job.spec, has_snapshot=False)}"


def _print_result(job: JobView, sentence: str, as_json: bool) -> None:
    if as_json:
        print_json(job)
    else:
        say(f"{job.id} {job.state}: {sentence}")
