"""Shared parts of the commands: the client, job lookup, and JSON output."""

from __future__ import annotations

import re
import time
from collections.abc import Iterable
from datetime import datetime, timedelta, timezone
from itertools import islice
from typing import Annotated

import typer
from pydantic import BaseModel

from orchestrator.cli.terminal import echo, say
from orchestrator.client import Client, ServiceUnreachable, connect
from orchestrator.client_settings import load_client_settings
from orchestrator.domain.errors import NotFound, OrchestratorError, Refused
from orchestrator.domain.job.job import JobState
from orchestrator.domain.terminal import clean_line, dump_json
from orchestrator.wire.job_views import JobView

AsJson = Annotated[bool, typer.Option("--json", help="Print JSON.")]
READ_PATIENCE_S, WRITE_PATIENCE_S = 3.0, 30.0
_WARN_EVERY_S = 60.0  # while the service is away
OUTAGE_S = 600.0  # how long the service may be away while we watch a job
JOB_FAILED, INTERRUPTED = 1, 130
_UNITS_S = {"m": 60, "h": 3600, "d": 86400, "w": 7 * 86400}
NO_SNAPSHOTS = "this script has taken none; only scripts with `Supervised` take them"
_OFFERED = 50  # ids offered to a shell that completes one


def complete_job(incomplete: str) -> list[tuple[str, str]]:
    """Complete a job id: list ids with their states, newest first. Empty if no service answers quickly."""
    try:
        with connect(patience_s=0) as client:
            found = islice(client.jobs(query=incomplete or None), _OFFERED)
            return [(clean_line(job.id), job.state.value) for job in found if job.id.startswith(incomplete)]
    except OrchestratorError:
        return []


JobId = Annotated[
    str,
    typer.Argument(
        metavar="JOB",
        help="A job id, a unique prefix of one, or a unique job name.",
        autocompletion=complete_job,
    ),
]


def reading() -> Client:
    """Create a client with short timeouts, for requests that are safe to repeat."""
    return connect(patience_s=READ_PATIENCE_S, on_warning=_print_warning)


def writing() -> Client:
    """Create a client that waits for a restarting service and prints that it does."""
    warned_at = -_WARN_EVERY_S

    def warn(failure: ServiceUnreachable) -> None:
        nonlocal warned_at
        if time.monotonic() - warned_at >= _WARN_EVERY_S:
            warned_at = time.monotonic()
            say(f"orchestrator: {failure}; trying again", err=True)

    settings = load_client_settings()
    ever_there = settings.url is not None or settings.root.exists()
    patience_s = WRITE_PATIENCE_S if ever_there else READ_PATIENCE_S
    return connect(settings, patience_s=patience_s, on_retry=warn, on_warning=_print_warning)


def _print_warning(warning: str) -> None:
    say(f"orchestrator: {clean_line(warning)}", err=True)


def find_job(client: Client, text: str) -> JobView:
    """Find a job by id, unique name, or unique id prefix. Raises NotFound, and Refused if several match."""
    if not text:
        raise NotFound("the id is empty; `orchestrator ls` lists the jobs")
    try:
        return client.job(text)
    except NotFound:
        pass
    found = [job for job in islice(client.jobs(query=text), 1000) if job.id.startswith(text) or job.name == text]
    named = [job for job in found if job.name == text]
    found = named if len(named) == 1 else found
    if not found and any(job.spec.array is not None for job in islice(client.jobs(label=f"array={text}"), 1)):
        raise NotFound(f"{text!r} is an array; see it with: orchestrator array show {text}")
    if not found:
        raise NotFound(f"there is no job {text!r}; `orchestrator ls` lists them")
    if len(found) > 1:
        some = ", ".join(job.id for job in found[:4])
        raise Refused(
            f"{text!r} may mean {len(found)} jobs: {some}{', ...' if len(found) > 4 else ''}; give more of the id"
        )
    return found[0]


def print_json(document: BaseModel | dict[str, object]) -> None:
    echo(dump_json(jsonable(document), indent=2))


def print_items(found: Iterable[BaseModel]) -> None:
    """Print all items of a list as one page."""
    print_json({"items": [jsonable(each) for each in found], "next_cursor": None})


def print_json_line(document: BaseModel | dict[str, object]) -> None:
    echo(dump_json(jsonable(document)))


def jsonable(document: BaseModel | dict[str, object]) -> dict[str, object]:
    return document.model_dump(mode="json", by_alias=True) if isinstance(document, BaseModel) else document


def exit_by(job: JobView) -> None:
    """Exit with the status of the job."""
    raise typer.Exit(0 if job.state is JobState.SUCCEEDED else JOB_FAILED)


def parse_moment(text: str, now: datetime) -> datetime:
    """Parse an age, or an ISO 8601 time (UTC by default). Raises Refused."""
    ago = re.fullmatch(r"(\d{1,6})([mhdw])", text)
    try:
        if ago is not None:
            return now - timedelta(seconds=int(ago[1]) * _UNITS_S[ago[2]])
        moment = datetime.fromisoformat(text)
    except (ValueError, OverflowError):
        raise Refused(
            f"{text!r} must be an age such as 90m, 12h, 30d or 4w, or a time such as 2026-05-04T12:00Z"
        ) from None
    return moment if moment.tzinfo is not None else moment.replace(tzinfo=timezone.utc)
