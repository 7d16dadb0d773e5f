"""`ls` and `show`: list jobs, and show one."""

from __future__ import annotations

from itertools import islice
from typing import Annotated

import typer

from orchestrator import wire
from orchestrator.cli.common import AsJson, JobId, find_job, print_items, print_json, reading, writing
from orchestrator.cli.follow import attend
from orchestrator.cli.render import print_job, print_jobs
from orchestrator.cli.terminal import echo, say
from orchestrator.client import Client
from orchestrator.domain.job.job import JobState
from orchestrator.wire.job_views import JobView

_NEWEST_STEPS = 20
_STATE = f"Show only jobs in this state: {', '.join(each.lower() for each in JobState)}."
_OLD_LINES = 10  # shown by --follow
Follow = Annotated[bool, typer.Option("--follow", help="Show output, progress and events until the end.")]
Wait = Annotated[bool, typer.Option("--wait", help="Wait until the job ends, and exit with its status.")]


def ls(
    state: Annotated[JobState | None, typer.Option(metavar="STATE", case_sensitive=False, help=_STATE)] = None,
    project: Annotated[str | None, typer.Option(metavar="PROJECT", help="Show only jobs of this project.")] = None,
    cluster: Annotated[str | None, typer.Option(metavar="CLUSTER", help="Show only jobs of this cluster.")] = None,
    label: Annotated[str | None, typer.Option(metavar="NAME=VALUE", help="Show only jobs with this label.")] = None,
    search: Annotated[
        str | None, typer.Option(metavar="TEXT", help="Show only jobs with TEXT in id, name or reason.")
    ] = None,
    limit: Annotated[int, typer.Option(metavar="N", min=1, help="Show at most N jobs.")] = 100,
    quiet: Annotated[bool, typer.Option("-q", "--quiet", help="Print ids only.")] = False,
    as_json: AsJson = False,
) -> None:
    """List jobs, newest first."""
    with reading() as client:
        found = client.jobs(
            state=str(state) if state else None, project=project, cluster=cluster, label=label, query=search
        )
        jobs = list(islice(found, limit + 1))
    more, jobs = len(jobs) > limit, jobs[:limit]
    if as_json:
        print_items(jobs)
    elif quiet:
        for job in jobs:
            echo(job.id)
    elif jobs:
        print_jobs(jobs)
    else:
        is_filtered = any((state, project, cluster, label, search))
        say("No job matches." if is_filtered else "No jobs. Submit one: orchestrator submit FILE", err=True)
    if more:
        say(f"There are more than {limit}: give a larger --limit or a filter.", err=True)


def _newest_metrics(client: Client, job: JobView) -> dict[str, float]:
    if job.step is None:
        return {}
    since = max(-1, job.step - _NEWEST_STEPS)
    return client.metrics(job.id, since_step=since, points=_NEWEST_STEPS).newest()


def _find_wait(client: Client, job: JobView) -> wire.insight.WaitView | None:
    """Return what the job waits for. Asks only about states in which a job waits for other jobs."""
    elastic = job.spec.topology.min_nodes < job.spec.topology.max_nodes
    waits = job.state is JobState.QUEUED or (elastic and job.state is JobState.RUNNING)
    return client.why(job.id).wait if waits else None


def show(job_id: JobId, wait: Wait = False, follow: Follow = False, as_json: AsJson = False) -> None:
    """Show one job."""
    with writing() if wait or follow else reading() as client:
        job = find_job(client, job_id)
        if wait or follow:
            attend(client, job, follow=follow, as_json=as_json, old_lines=_OLD_LINES)
        if as_json:
            print_json(job)
        else:
            print_job(job, client.url, _newest_metrics(client, job), _find_wait(client, job))
