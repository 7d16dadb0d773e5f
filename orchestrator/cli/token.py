"""`token`: create, list and revoke tokens."""

from __future__ import annotations

import re
from datetime import UTC, datetime, timedelta
from typing import Annotated

import typer

from orchestrator.cli.common import AsJson, print_items, print_json, reading, writing
from orchestrator.cli.terminal import echo, say
from orchestrator.domain.access.identity import EVERY_PROJECT, Role
from orchestrator.domain.errors import Refused

_TERM = re.compile(r"(\d{1,6})([hdw])", re.ASCII)
_UNITS = {"h": timedelta(hours=1), "d": timedelta(days=1), "w": timedelta(weeks=1)}

token = typer.Typer(
    help="Create, list and revoke tokens.", no_args_is_help=True, rich_markup_mode=None, add_completion=False
)


@token.command()
def create(
    name: Annotated[str, typer.Argument(metavar="NAME", help="The name of the token's owner, shown in events.")],
    grant: Annotated[
        list[str],
        typer.Option(metavar="[PROJECT=]ROLE", help="A role (viewer, submitter, operator, admin). Repeatable."),
    ],
    expires: Annotated[
        str | None, typer.Option(metavar="LIFETIME", help="Lifetime, such as 12h, 30d or 8w. Default: unlimited.")
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Create a token and show it once."""
    grants, expires_at = dict(parse_grant(one) for one in grant), parse_term(expires, datetime.now(UTC))
    with writing() as client:
        made = client.create_token(name, grants, expires_at=expires_at)
    if as_json:
        print_json(made)
        return
    echo(made.token)
    say(f"The token is shown only once. To act as {made.name}: ORCHESTRATOR_TOKEN=... orchestrator ls", err=True)


@token.command()
def ls(as_json: AsJson = False) -> None:
    """List tokens, newest first, without their secrets."""
    with reading() as client:
        found = client.tokens()
    if as_json:
        print_items(found)
        return
    for one in found:
        grants = ",".join(f"{project}={role}" for project, role in sorted(one.grants.items()))
        if one.revoked_at is not None:
            state = f"revoked by {one.revoked_by}"
        else:
            state = "valid" if one.expires_at is None else f"valid until {one.expires_at:%Y-%m-%d %H:%M} UTC"
        echo(f"{one.id}  {one.name}  {grants}  {state}")
    if not found:
        say("There is no token; `orchestrator token create` creates one.", err=True)


@token.command()
def revoke(token_id: Annotated[str, typer.Argument(metavar="TOKEN")], as_json: AsJson = False) -> None:
    """Revoke a token and its sessions."""
    with writing() as client:
        ended = client.revoke_token(token_id)
    if as_json:
        print_json(ended)
    else:
        echo(f"token {ended.id} of {ended.name} is revoked")


def parse_grant(text: str) -> tuple[str, Role]:
    """Parse `research=operator`. A role without a project applies to every project. Raises Refused."""
    project, equals, role = text.rpartition("=")
    if role not in set(Role):
        raise Refused(f"--grant {text!r}: must be a role ({', '.join(Role)}) or such as research=operator")
    if equals and not project:
        raise Refused(f"--grant {text!r}: the project is missing; write it such as research=operator")
    return project or EVERY_PROJECT, Role(role)


def parse_term(text: str | None, now: datetime) -> datetime | None:
    """Raises Refused."""
    if text is None:
        return None
    match = _TERM.fullmatch(text)
    if match is None or int(match[1]) == 0:
        raise Refused(f"--expires {text!r}: must be a number of hours, days or weeks, such as 12h, 30d or 8w")
    return now + int(match[1]) * _UNITS[match[2]]
