"""`logs`, `events` and `snapshots` of a job."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator
from datetime import datetime, timezone
from typing import Annotated

import typer

from orchestrator.cli.common import (
    NO_SNAPSHOTS,
    AsJson,
    JobId,
    find_job,
    jsonable,
    parse_moment,
    print_items,
    print_json,
    print_json_line,
    reading,
)
from orchestrator.cli.event_tail import EventTail
from orchestrator.cli.render import print_events, print_snapshots
from orchestrator.cli.terminal import echo, echo_lines, say
from orchestrator.client import Client, LogChoice
from orchestrator.wire.job_views import EventView, JobView


def logs(
    job_id: JobId,
    follow: Annotated[
        bool, typer.Option("-f", "--follow", help="Print the last 10,000 lines, then new ones as they come.")
    ] = False,
    replica: Annotated[
        int | None, typer.Option(metavar="N", min=0, help="Show only the workers of this replica.")
    ] = None,
    rank: Annotated[int | None, typer.Option(metavar="RANK", min=0, help="Show only this rank.")] = None,
    tail: Annotated[int | None, typer.Option(min=0, metavar="N", help="Show only the last N lines.")] = None,
    attempt: Annotated[
        int | None, typer.Option(metavar="N", min=1, help="Show this attempt. Default: the newest.")
    ] = None,
    grep: Annotated[str | None, typer.Option(metavar="TEXT", help="Show only lines that contain TEXT.")] = None,
    since: Annotated[
        str | None, typer.Option(metavar="AGO|TIME", help="Show only logs since then: 90m, 2026-01-31T12:00Z.")
    ] = None,
    agent: Annotated[bool, typer.Option("--agent", help="Show the logs of the agents, not of their workers.")] = False,
    as_json: AsJson = False,
) -> None:
    """Print the logs of a job's workers."""
    which = LogChoice(
        attempt=attempt,
        replica=replica,
        rank=rank,
        tail=tail,
        grep=grep,
        since=None if since is None else parse_moment(since, datetime.now(timezone.utc)).isoformat(),
        stream="agent" if agent else None,
    )
    with reading() as client:
        job = find_job(client, job_id)
        if not follow:
            lines = client.whole_log(job.id, **which) if tail is None else client.logs(job.id, **which).splitlines()
            if as_json:
                print_json({"job": job.id, "lines": list(lines)})
            else:
                echo_lines(lines)
            return
        for line in client.follow_logs(job.id, **which):
            if as_json:
                print_json_line({"line": line})
            else:
                echo(line)


def events(
    job_id: JobId,
    follow: Annotated[
        bool, typer.Option("-f", "--follow", help="Print the events so far, then new ones as they come.")
    ] = False,
    tail: Annotated[int | None, typer.Option(min=0, metavar="N", help="Show only the last N events.")] = None,
    as_json: AsJson = False,
) -> None:
    """List a job's events."""
    with reading() as client:
        job = find_job(client, job_id)
        if follow:
            for event in _follow_events(client, job, tail):
                if as_json:
                    print_json_line({"event": jsonable(event)})
                else:
                    print_events(job, [event])
            return
        found = deque(client.events(job.id), maxlen=tail)
    if as_json:
        print_items(found)
    else:
        print_events(job, found)


def _follow_events(client: Client, job: JobView, tail: int | None) -> Iterator[EventView]:
    news = EventTail(client, job.id)
    yield from deque(news.new(), maxlen=tail)
    yield from news.follow(job)


def snapshots(
    job_id: JobId,
    with_deleted: Annotated[bool, typer.Option("--all", help="Include deleted snapshots.")] = False,
    as_json: AsJson = False,
) -> None:
    """List a job's snapshots."""
    with reading() as client:
        job = find_job(client, job_id)
        known = list(client.snapshots(job.id))
    found = [snapshot for snapshot in known if with_deleted or snapshot.exists]
    if as_json:
        print_items(found)
    elif found:
        print_snapshots(found)
    elif known:
        say("All snapshots were deleted; --all lists them.", err=True)
    else:
        say(_explain_none(job), err=True)


def _explain_none(job: JobView) -> str:
    if job.state.terminal:
        return "No snapshot was taken."
    if not job.takes_snapshots:
        return f"No snapshots: {NO_SNAPSHOTS}."
    return f"No snapshots yet; `orchestrator snapshot {job.id}` takes one while the job runs."
