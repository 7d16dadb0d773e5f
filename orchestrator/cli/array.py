"""`array`: the jobs that one sweep made."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from itertools import islice
from typing import Annotated

import typer

from orchestrator.cli.common import (
    INTERRUPTED,
    JOB_FAILED,
    OUTAGE_S,
    AsJson,
    print_json,
    print_json_line,
    reading,
    writing,
)
from orchestrator.cli.render import colored, print_table, steps
from orchestrator.cli.terminal import echo, say
from orchestrator.client import Client
from orchestrator.domain.counted import counted
from orchestrator.domain.errors import NotFound, Refused
from orchestrator.wire.array_views import ArrayView

_LOOK_EVERY_S = 1.0
_LOOKED_AT = 1000  # jobs
ArrayId = Annotated[str, typer.Argument(metavar="ARRAY", help="The id of an array, a unique prefix, or a member.")]
Wait = Annotated[bool, typer.Option("--wait", help="Wait until all members have ended.")]

array = typer.Typer(
    help="Show, cancel and retry arrays.", no_args_is_help=True, rich_markup_mode=None, add_completion=False
)


@array.command()
def show(array_id: ArrayId, wait: Wait = False, as_json: AsJson = False) -> None:
    """Show an array and its members.

    With --wait the exit status is 0 if all members succeeded, else 1.
    """
    with reading() as client:
        found = find_array(client, array_id)
        if wait:
            attend_array(client, found, as_json=as_json)
        print_array(found, as_json=as_json)


@array.command()
def cancel(array_id: ArrayId, as_json: AsJson = False) -> None:
    """Cancel the members that have not ended."""
    with writing() as client:
        _print_requested(client.cancel_array(find_array(client, array_id).id), as_json=as_json)


@array.command()
def retry(array_id: ArrayId, as_json: AsJson = False) -> None:
    """Retry the members that failed."""
    with writing() as client:
        _print_requested(client.retry_array(find_array(client, array_id).id), as_json=as_json)


def find_array(client: Client, text: str) -> ArrayView:
    """Find an array by its id, a unique prefix of it, or the id or name of a member.

    Raises NotFound, and Refused if several match.
    """
    if not text:
        raise NotFound("the id is empty; `submit` prints the id of an array, and `orchestrator show` that of a member")
    try:
        return client.array(text)
    except NotFound:
        jobs = islice(client.jobs(query=text), _LOOKED_AT)
    members = [(job, job.spec.array.id) for job in jobs if job.spec.array is not None]
    arrays = {array_id for job, array_id in members if text in (job.id, job.name) or array_id.startswith(text)}
    if not arrays:
        raise NotFound(f"there is no array {text!r}; `orchestrator show` prints the array of a member")
    if len(arrays) > 1:
        raise Refused(f"{text!r} may mean {len(arrays)} arrays: {', '.join(sorted(arrays)[:4])}; give more of the id")
    return client.array(arrays.pop())


def attend_array(client: Client, found: ArrayView, *, as_json: bool) -> None:
    """Wait until all members have ended, and exit with 0 if all succeeded. Ctrl-C leaves them running."""
    shown = None
    try:
        while True:
            if (count := found.count()) != shown and as_json:
                print_json_line({"array": found.model_dump(mode="json")})
            elif count != shown:
                say(summary(found))
            if found.ended:
                break
            shown = count
            time.sleep(_LOOK_EVERY_S)
            found = client.array(found.id, patience_s=OUTAGE_S)
    except KeyboardInterrupt:
        say(f"\nThe jobs continue: orchestrator array show {found.id}", err=True)
        raise typer.Exit(INTERRUPTED) from None
    raise typer.Exit(0 if found.succeeded else JOB_FAILED)


def summary(found: ArrayView) -> str:
    """Return one line, such as "lr-abcdefgh  8 jobs: 2 RUNNING, 6 QUEUED"."""
    counts = ", ".join(f"{count} {state}" for state, count in found.count().items())
    counts += f", {found.missing} missing" if found.missing else ""
    limit = f", at most {found.at_once} at a time" if found.at_once is not None else ""
    return f"{found.id}  {counted(found.size, 'job')}{limit}: {counts}"


def print_members(values: Sequence[Mapping[str, str]]) -> None:
    """Print what a sweep chooses for each member. Nothing without members."""
    if values:
        keys = list(dict.fromkeys(key for each in values for key in each))
        say(f"the sweep makes {counted(len(values), 'job')}; the first one is planned below")
        rows = ((str(index), *(each.get(key, "") for key in keys)) for index, each in enumerate(values, start=1))
        print_table(("#", *keys), rows)
        echo()


def print_array(found: ArrayView, *, as_json: bool) -> None:
    if as_json:
        print_json(found)
        return
    say(summary(found))
    print_table(
        ("#", *found.keys, "STATE", "STEP", "LOSS", "ID", "REASON"),
        (
            (
                str(member.index),
                *(member.values.get(key, "") for key in found.keys),
                colored(member.state),
                steps(member),
                "" if member.loss is None else f"{member.loss:.4g}",
                member.job_id,
                member.reason,
            )
            for member in found.members
        ),
        spare=("STEP", "LOSS"),
    )


def _print_requested(found: ArrayView, *, as_json: bool) -> None:
    if as_json:
        print_json(found)
        return
    for sentence in found.refused:
        say(sentence, err=True)
    say(summary(found))
