"""`secret`: environment variables of jobs that are never shown. A value is never a command argument."""

from __future__ import annotations

import sys
from typing import Annotated

import typer

from orchestrator.cli.common import AsJson, print_items, print_json, reading, writing
from orchestrator.cli.terminal import echo, say
from orchestrator.domain.errors import Refused

Name = Annotated[str, typer.Argument(metavar="NAME", help="The environment variable, such as WANDB_API_KEY.")]
Project = Annotated[str, typer.Option(metavar="PROJECT", help="The project whose jobs may use the secret.")]

secret = typer.Typer(
    help="Store, list and remove secrets.", no_args_is_help=True, rich_markup_mode=None, add_completion=False
)


@secret.command(name="set")
def store(name: Name, project: Project = "default", as_json: AsJson = False) -> None:
    """Store or replace a secret. Asks for its value, or reads it from standard input in a pipe."""
    value = _read_value()
    with writing() as client:
        stored = client.store_secret(name, value, project=project)
    if as_json:
        print_json(stored)
    else:
        say(f"secret {stored.name} of project {stored.project} is stored; jobs name it in run.secrets")


@secret.command()
def ls(
    project: Annotated[str | None, typer.Option(metavar="PROJECT", help="Show only secrets of this project.")] = None,
    as_json: AsJson = False,
) -> None:
    """List the names of secrets, who stored them, and when."""
    with reading() as client:
        found = client.secrets(project=project)
    if as_json:
        print_items(found)
        return
    for one in found:
        echo(f"{one.project}  {one.name}  {one.updated_at:%Y-%m-%d %H:%M} UTC  {one.updated_by}")
    if not found:
        say("There is no secret; `orchestrator secret set NAME` stores one.", err=True)


@secret.command()
def rm(name: Name, project: Project = "default", as_json: AsJson = False) -> None:
    """Remove a secret. Running jobs keep its value."""
    with writing() as client:
        client.remove_secret(name, project=project)
    if as_json:
        print_json({"project": project, "name": name})
    else:
        say(f"secret {name} of project {project} is removed")


def _read_value() -> str:
    """Read standard input without the last line end, or ask twice without echo on a terminal."""
    if sys.stdin.isatty():
        value: str = typer.prompt("Value", hide_input=True, confirmation_prompt=True)
    else:
        value = sys.stdin.read().removesuffix("\n").removesuffix("\r")
    if not value:
        raise Refused("the value is empty; type it, or pipe it in: printf %s VALUE | orchestrator secret set NAME")
    return value
