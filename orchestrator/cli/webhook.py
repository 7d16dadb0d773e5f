"""`webhook`: webhooks in addition to those of the service's settings."""

from __future__ import annotations

from typing import Annotated

import typer

from orchestrator.cli.common import AsJson, print_items, print_json, reading, writing
from orchestrator.cli.terminal import echo, say

Name = Annotated[str, typer.Argument(metavar="NAME", help="The name that jobs use in notify.")]

webhook = typer.Typer(
    help="Create, list and remove webhooks.", no_args_is_help=True, rich_markup_mode=None, add_completion=False
)


@webhook.command()
def add(
    name: Name,
    url: Annotated[str, typer.Argument(metavar="URL", help="The address that receives the messages.")],
    event: Annotated[
        list[str] | None, typer.Option(metavar="PATTERN", help="Kinds of events, such as 'job.*'. Repeatable.")
    ] = None,
    all_jobs: Annotated[bool, typer.Option("--all-jobs", help="Include jobs that do not name the webhook.")] = False,
    as_json: AsJson = False,
) -> None:
    """Create a webhook and show its signing secret once."""
    with writing() as client:
        made = client.create_webhook(name, url, events=event or ["job.state"], all_jobs=all_jobs)
    if as_json:
        print_json(made)
        return
    echo(made.secret)
    say(f"The secret is shown only once. To use the webhook in a job: notify: [{made.name}]", err=True)


@webhook.command()
def ls(as_json: AsJson = False) -> None:
    """List webhooks, including those of the settings, without their URLs."""
    with reading() as client:
        found = client.webhooks()
    if as_json:
        print_items(found)
        return
    for one in found:
        whose = "all jobs" if one.all_jobs else "jobs that name it"
        echo(f"{one.name}  {one.host}  {','.join(one.events)}  {whose}")
    if not found:
        say("There is no webhook; `orchestrator webhook add NAME URL` creates one.", err=True)


@webhook.command()
def rm(name: Name, as_json: AsJson = False) -> None:
    """Remove a webhook that is not from the settings."""
    with writing() as client:
        client.remove_webhook(name)
    if as_json:
        print_json({"name": name})
    else:
        echo(f"webhook {name} is removed")
