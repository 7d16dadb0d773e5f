"""`ls`: list jobs."""

from __future__ import annotations

from itertools import islice
from typing import Annotated

import typer

from orchestrator.cli.common import AsJson, print_items, reading
from orchestrator.cli.render import print_jobs
from orchestrator.cli.terminal import echo, say
from orchestrator.domain.job.job import JobState

_STATE = f"Show only jobs in this state: {', '.join(each.lower() for each in JobState)}."


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
