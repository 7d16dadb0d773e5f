"""`submit` and `plan`: send a job file to the service."""

from __future__ import annotations

from typing import Annotated

import typer

from orchestrator.cli.clearing import clear
from orchestrator.cli.common import AsJson, find_job, print_json, reading, writing
from orchestrator.cli.follow import attend
from orchestrator.cli.render_plan import print_against, print_plan
from orchestrator.cli.spec import read_spec
from orchestrator.cli.terminal import echo
from orchestrator.domain.errors import Refused
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
        str | None, typer.Option(help="An idempotency key: the same key and file give the same job.")
    ] = None,
    preflight: Annotated[
        bool, typer.Option("--preflight", help="Run a preflight first, and exclude nodes that fail it.")
    ] = False,
    as_json: AsJson = False,
) -> None:
    """Submit a job from a YAML or JSON file.

    A relative `run.workdir` starts at the current folder. With --wait or --follow the exit status is the job's: 0
    succeeded, 1 failed or cancelled. With --preflight it is also 1 if the preflight failed; then nothing is submitted.
    """
    if idempotency_key == "":
        raise Refused("--idempotency-key is empty; leave it out or give a text")
    if idempotency_key is not None and preflight:
        raise Refused("--preflight and --idempotency-key cannot be combined, because a preflight may change the job")
    document = read_spec(file, changes or ())
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


def print_note(sentence: str) -> None:
    """Print to standard error, because scripts read standard output."""
    echo(sentence, err=True)


def plan(
    file: File,
    changes: Changes = None,
    diff: Annotated[
        str | None, typer.Option("--diff", metavar="ID", help="Show the differences from this job.")
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Show what a job file would launch, without submitting it."""
    spec = read_spec(file, changes or ())
    with reading() as client:
        planned = client.plan(spec, against=None if diff is None else find_job(client, diff).id)
    if as_json:
        print_json(planned)
    elif planned.against is not None:
        print_against(planned.against)
    else:
        print_plan(planned)
