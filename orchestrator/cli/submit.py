"""`submit` and `plan`: from a job's file to the service."""

from __future__ import annotations

from typing import Annotated

import typer

from orchestrator.cli.common import AsJson, print_json, reading, writing
from orchestrator.cli.follow import attend
from orchestrator.cli.render import print_plan
from orchestrator.cli.spec import read_spec
from orchestrator.domain.errors import Refused

File = Annotated[str, typer.Argument(metavar="FILE", help="YAML or JSON; '-' reads standard input.")]
Changes = Annotated[
    list[str] | None, typer.Option("--set", metavar="KEY.PATH=VALUE", help="Change a field; may be repeated.")
]


def submit(
    file: File,
    changes: Changes = None,
    wait: Annotated[bool, typer.Option("--wait", help="Stay until the job has ended.")] = False,
    follow: Annotated[bool, typer.Option("--follow", help="Stay, and show its progress and events.")] = False,
    idempotency_key: Annotated[
        str | None, typer.Option(help="Submitting again with the same key and file gives the same job.")
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Submit the job of a YAML or JSON file ('-': standard input).

    `run.workdir` counts from the current folder. With --wait or --follow the exit status is the job's: 0 succeeded,
    1 failed or cancelled.
    """
    if idempotency_key == "":
        raise Refused("--idempotency-key is empty; leave it away or give a text")
    spec = read_spec(file, changes or ())
    with writing() as client:
        job = client.submit(spec, idempotency_key=idempotency_key)
        if not as_json:
            typer.echo(job.id)
        elif not (wait or follow):
            print_json(job)
        if wait or follow:
            attend(client, job, follow=follow, as_json=as_json)


def plan(file: File, changes: Changes = None, as_json: AsJson = False) -> None:
    """Show what a job's file would launch; submit nothing."""
    spec = read_spec(file, changes or ())
    with reading() as client:
        planned = client.plan(spec)
    if as_json:
        print_json(planned)
    else:
        print_plan(planned)
