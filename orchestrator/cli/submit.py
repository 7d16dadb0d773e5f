"""`submit` and `plan`: send a job file to the service."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated

import typer

from orchestrator.cli.array import attend_array, print_members
from orchestrator.cli.clearing import clear
from orchestrator.cli.common import AsJson, find_job, jsonable, print_json, reading, writing
from orchestrator.cli.follow import attend
from orchestrator.cli.render_plan import print_against, print_plan
from orchestrator.cli.spec import read_spec
from orchestrator.cli.terminal import echo, say
from orchestrator.domain.counted import counted
from orchestrator.domain.errors import Refused
from orchestrator.domain.specs.spec import JobSpec
from orchestrator.domain.specs.sweep import expand, is_sweep, parse_array
from orchestrator.domain.specs.validation import parse_spec

File = Annotated[str, typer.Argument(metavar="FILE", help="A YAML or JSON file. '-' reads standard input.")]
OLD_LINES = 10_000  # a new job has fewer
Changes = Annotated[
    list[str] | None, typer.Option("--set", metavar="KEY.PATH=VALUE", help="Change a field. Repeatable.")
]


def submit(
    file: File,
    changes: Changes = None,
    wait: Annotated[bool, typer.Option("--wait", help="Wait until the job ends.")] = False,
    follow: Annotated[bool, typer.Option("--follow", help="Show output, progress and events until the end.")] = False,
    idempotency_key: Annotated[
        str | None, typer.Option(metavar="KEY", help="An idempotency key: the same key and file give the same job.")
    ] = None,
    preflight: Annotated[
        bool, typer.Option("--preflight", help="Run a preflight first, and exclude nodes that fail it.")
    ] = False,
    as_json: AsJson = False,
) -> None:
    """Submit a job from a YAML or JSON file.

    A relative `run.workdir` starts at the current folder. With --wait or --follow the exit status is the job's: 0
    succeeded, 1 failed or cancelled. With --preflight it is also 1 if the preflight failed; then nothing is submitted.
    A file with `sweep` submits an array of jobs.
    """
    if idempotency_key == "":
        raise Refused("--idempotency-key is empty; leave it out or give a text")
    if idempotency_key is not None and preflight:
        raise Refused("--preflight and --idempotency-key cannot be combined, because a preflight may change the job")
    document = read_spec(file, changes or ())
    if is_sweep(document):
        if preflight or follow:
            raise Refused("--preflight and --follow are for one job; use --wait with a sweep")
        _submit_array(document, idempotency_key, wait=wait, as_json=as_json)
        return
    with writing() as client:
        spec = clear(client, parse_spec(document), say=print_note) if preflight else document
        job = client.submit(spec, idempotency_key=idempotency_key)
        for warning in job.warnings:
            print_note(f"warning: {warning}")
        print_note(f"submitted to {client.url}")
        if not as_json:
            echo(job.id)
        elif not (wait or follow):
            print_json(job)
        if wait or follow:
            attend(client, job, follow=follow, as_json=as_json, old_lines=OLD_LINES)


def _submit_array(document: dict[str, object], idempotency_key: str | None, *, wait: bool, as_json: bool) -> None:
    with writing() as client:
        found = client.submit_array(document, idempotency_key=idempotency_key)
        for warning in found.warnings:
            print_note(f"warning: {warning}")
        print_note(f"submitted {counted(found.size, 'job')} to {client.url}")
        if wait:
            attend_array(client, found, as_json=as_json)
        elif as_json:
            print_json(found)
        else:
            echo(found.id)


def print_note(sentence: str) -> None:
    """Print to standard error, because scripts read standard output."""
    say(sentence, err=True)


def plan(
    file: File,
    changes: Changes = None,
    diff: Annotated[
        str | None, typer.Option("--diff", metavar="JOB", help="Show the differences from this job.")
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Show what a job file would launch, without submitting it.

    Of a sweep it lists the members and shows the launch of the first one.
    """
    document = read_spec(file, changes or ())
    members = expand(parse_array(document), "preview") if is_sweep(document) else []
    spec = members[0].model_copy(update={"array": None}) if members else document
    with reading() as client:
        planned = client.plan(spec, against=None if diff is None else find_job(client, diff).id)
    if as_json:
        print_json({"members": _values_of(members), "plan": jsonable(planned)} if members else planned)
        return
    print_members(_values_of(members))
    if planned.against is not None:
        print_against(planned.against)
    else:
        print_plan(planned)


def _values_of(members: Sequence[JobSpec]) -> list[dict[str, str]]:
    """Return what the sweep chose for each member."""
    return [member.array.values for member in members if member.array is not None]
