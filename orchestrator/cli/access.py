"""`login`, `logout` and `profiles`: which service the client uses, and with which token."""

from __future__ import annotations

import sys
from typing import Annotated
from urllib.parse import urlsplit

import typer

from orchestrator.cli.common import AsJson, print_json
from orchestrator.cli.render import print_profiles
from orchestrator.cli.terminal import say
from orchestrator.client import Client, find_url
from orchestrator.client.profiles import Profile, check_name, read_profiles, write_profiles
from orchestrator.client_settings import load_client_settings
from orchestrator.domain.errors import ConfigurationError, Refused

_LOOPBACK = frozenset({"127.0.0.1", "localhost", "::1"})
_PATIENCE_S = 3.0
_NOBODY = "-"


def login(
    url: Annotated[str, typer.Argument(metavar="URL", help="The address of the service, such as https://host:8700.")],
    name: Annotated[
        str | None, typer.Option(metavar="NAME", help="Name of the profile. Default: the service's host.")
    ] = None,
    token: Annotated[
        bool, typer.Option("--token/--no-token", help="Ask for a token, or read it from standard input in a pipe.")
    ] = True,
    as_json: AsJson = False,
) -> None:
    """Store a service's address and your token in a profile.

    The token is checked first, then stored in a file that only you can read. The profile becomes the current one.
    """
    settings = load_client_settings().model_copy(update={"url": url})
    address = find_url(settings)
    chosen = check_name(name or str(urlsplit(address).hostname))
    secret = _read_token() if token else None
    parts = urlsplit(address)
    if secret and parts.scheme == "http" and parts.hostname not in _LOOPBACK:
        say("orchestrator: over http others can read the token; use https", err=True)
    with Client(address, secret, patience_s=_PATIENCE_S) as client:
        client.clusters()  # checks the token: every role may list clusters
    file = write_profiles(read_profiles().with_profile(Profile(name=chosen, url=address, token=secret)))
    if as_json:
        print_json({"profile": chosen, "url": address, "file": str(file)})
    else:
        say(f"profile {chosen} with {address} is now the current one; see `orchestrator profiles`")


def logout(
    name: Annotated[str | None, typer.Argument(metavar="PROFILE", help="Default: the current profile.")] = None,
    as_json: AsJson = False,
) -> None:
    """Delete a profile and its token."""
    profiles = read_profiles()
    forgotten = name or profiles.current
    if forgotten is None:
        raise ConfigurationError("there is no current profile; name one of `orchestrator profiles`")
    profiles.named(forgotten)
    write_profiles(profiles.without(forgotten))
    if as_json:
        print_json({"profile": forgotten})
    else:
        say(f"profile {forgotten} is deleted; its token stays valid until it is revoked")


def profiles(
    use: Annotated[
        str | None,
        typer.Option(
            metavar="PROFILE", help="Make this profile the current one. '-' means the service on this machine."
        ),
    ] = None,
    as_json: AsJson = False,
) -> None:
    """List the services that you have signed in to, or choose one."""
    known = read_profiles()
    if use is not None:
        known = known.using(None if use == _NOBODY else use)
        write_profiles(known)
    rows = [
        {"name": one.name, "url": one.url, "token": one.token is not None, "current": one.name == known.current}
        for one in known.by_name.values()
    ]
    if as_json:
        print_json({"items": rows, "next_cursor": None})
    elif rows:
        print_profiles(known)
    else:
        say("No profiles yet: orchestrator login URL", err=True)


def _read_token() -> str | None:
    """Ask for a token without echo. None if the input is empty."""
    if sys.stdin.isatty():
        given: str = typer.prompt("Token (empty: none)", default="", hide_input=True, show_default=False)
    else:
        given = sys.stdin.readline()
    token = given.strip()
    if not (token.isascii() and token.isprintable()):
        raise Refused("the token contains characters that no token has; copy it again")
    return token or None
