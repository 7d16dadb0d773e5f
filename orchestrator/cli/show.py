"""`show`: show one job, or follow it."""

from __future__ import annotations

from typing import Annotated

import typer

from orchestrator import wire
from orchestrator.cli.common import AsJson, JobId, find_job, print_json, reading, writing
from orchestrator.cli.follow import attend
from orchestrator.cli.render import print_job
from orchestrator.client import Client
from orchestrator.domain.job.job import JobState
from orchestrator.wire.job_views import JobView

_NEWEST_STEPS = 20
_OLD_LINES = 10  # shown by --follow
Follow = Annotated[bool, typer.Option("--follow", help="Show output, progress and events until the end.")]
Wait = Annotated[bool, typer.Option("--wait", help="Wait until the job ends, and exit with its status.")]


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
