"""`webhook`: who is told of events, beside those of the service's settings."""

from __future__ import annotations

from typing import Annotated

import typer

from orchestrator.cli.common import AsJson, print_items, print_json, reading, writing
from orchestrator.cli.terminal import echo

Name = Annotated[str, typer.Argument(metavar="NAME", help="What a job's notify names.")]

webhook = typer.Typer(
    help="Make, list and remove webhooks.", no_args_is_help=True, rich_markup_mode=None, add_completion=False
)


@webhook.command()
def add(
    name: Name,
    url: Annotated[str, typer.Argument(metavar="URL", help="Where the messages go.")],
    event: Annotated[
        list[str] | None, typer.Option(metavar="PATTERN", help="Kinds of events, as 'job.*'; repeat it.")
    ] = None,
    all_jobs: Annotated[bool, typer.Option("--all-jobs", help="Also of jobs that do not name it.")] = False,
    as_json: AsJson = False,
) -> None:
    """Make a webhook and show the secret that signs its messages, this once."""
    with writing() as client:
        made = client.create_webhook(name, url, events=event or ["job.state"], all_jobs=all_jobs)
    if as_json:
        print_json(made)
        return
    echo(made.secret)
    echo(f"This is shown once. Jobs name it so: notify: [{made.name}]", err=True)


@webhook.command()
def ls(as_json: AsJson = False) -> None:
    """List the webhooks, those of the settings too; never their URLs."""
    with reading() as client:
        found = client.webhooks()
    if as_json:
        print_items(found)
        return
    for one in found:
        whose = "all jobs" if one.all_jobs else "jobs that name it"
        echo(f"{one.name}  {one.host}  {','.join(one.events)}  {whose}")
    if not found:
        echo("There is no webhook; `orchestrator webhook add NAME URL` makes one.", err=True)


@webhook.command()
def rm(name: Name, as_json: AsJson = False) -> None:
    """Remove a webhook that was made by request."""
    with writing() as client:
        client.remove_webhook(name)
    if as_json:
        print_json({"name": name})
    else:
        echo(f"webhook {name} is removed")
