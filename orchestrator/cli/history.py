"""`logs`, `events` and `snapshots`: what a job left behind."""

from __future__ import annotations

from typing import Annotated

import typer

from orchestrator.cli.common import AsJson, JobId, find_job, jsonable, print_json, print_json_line, reading
from orchestrator.cli.render import print_events, print_snapshots


def logs(
    job_id: JobId,
    follow: Annotated[bool, typer.Option("-f", "--follow", help="Go on as lines are written.")] = False,
    rank: Annotated[int | None, typer.Option(min=0, help="Of one worker only.")] = None,
    tail: Annotated[int | None, typer.Option(min=0, help="The last so many lines only.")] = None,
    attempt: Annotated[int | None, typer.Option(min=1, help="Of one attempt; default: the newest.")] = None,
    as_json: AsJson = False,
) -> None:
    """Print what a job's workers wrote."""
    with reading() as client:
        job = find_job(client, job_id)
        if not follow:
            text = client.logs(job.id, rank=rank, tail=tail, attempt=attempt)
            if as_json:
                print_json({"job": job.id, "lines": text.splitlines()})
            else:
                typer.echo(text, nl=bool(text) and not text.endswith("\n"))
            return
        for line in client.follow_logs(job.id, rank=rank, tail=tail, attempt=attempt):
            if as_json:
                print_json_line({"line": line})
            else:
                typer.echo(line)


def events(job_id: JobId, as_json: AsJson = False) -> None:
    """Tell what happened to a job."""
    with reading() as client:
        found = list(client.events(find_job(client, job_id).id))
    if as_json:
        print_json({"items": [jsonable(event) for event in found], "next_cursor": None})
    else:
        print_events(found)


def snapshots(job_id: JobId, as_json: AsJson = False) -> None:
    """List a job's snapshots."""
    with reading() as client:
        found = list(client.snapshots(find_job(client, job_id).id))
    if as_json:
        print_json({"items": [jsonable(snapshot) for snapshot in found], "next_cursor": None})
    elif found:
        print_snapshots(found)
    else:
        typer.echo("No snapshots yet.", err=True)
