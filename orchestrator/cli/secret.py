"""`secret`: what jobs get in their environment and nobody is told. A value never stands in a command's arguments."""

from __future__ import annotations

import sys
from typing import Annotated

import typer

from orchestrator.cli.common import AsJson, print_items, print_json, reading, writing
from orchestrator.cli.terminal import echo
from orchestrator.domain.errors import Refused

Name = Annotated[str, typer.Argument(metavar="NAME", help="The variable of the environment, as WANDB_API_KEY.")]
Project = Annotated[str, typer.Option(help="The project whose jobs may name it.")]

secret = typer.Typer(
    help="Store, list and remove secrets.", no_args_is_help=True, rich_markup_mode=None, add_completion=False
)


@secret.command(name="set")
def store(name: Name, project: Project = "default", as_json: AsJson = False) -> None:
    """Store a secret or replace it. Its value is asked for, or read from standard input when piped."""
    value = _read_value()
    with writing() as client:
        stored = client.store_secret(name, value, project=project)
    if as_json:
        print_json(stored)
    else:
        echo(f"secret {stored.name} of project {stored.project} is stored; jobs name it in run.secrets")


@secret.command()
def ls(
    project: Annotated[str | None, typer.Option(help="Of one project only.")] = None, as_json: AsJson = False
) -> None:
    """List the names of secrets, and who stored them when."""
    with reading() as client:
        found = client.secrets(project=project)
    if as_json:
        print_items(found)
        return
    for one in found:
        echo(f"{one.project}  {one.name}  {one.updated_at:%Y-%m-%d %H:%M} UTC  {one.updated_by}")
    if not found:
        echo("There is no secret; `orchestrator secret set NAME` stores one.", err=True)


@secret.command()
def rm(name: Name, project: Project = "default", as_json: AsJson = False) -> None:
    """Remove a secret. Jobs that run keep what they were given."""
    with writing() as client:
        client.remove_secret(name, project=project)
    if as_json:
        print_json({"project": project, "name": name})
    else:
        echo(f"secret {name} of project {project} is removed")


def _read_value() -> str:
    """All of standard input but a last line end; asked for without an echo, twice, where a person types it."""
    if sys.stdin.isatty():
        said: str = typer.prompt("Value", hide_input=True, confirmation_prompt=True)
    else:
        said = sys.stdin.read().removesuffix("\n").removesuffix("\r")
    if not said:
        raise Refused("the value is empty; type it, or pipe it in: printf %s VALUE | orchestrator secret set NAME")
    return said
