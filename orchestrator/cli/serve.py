"""`serve`: the command that imports the service."""

from __future__ import annotations

from typing import Annotated

import typer

from orchestrator import process
from orchestrator.cli.service_settings import Config, DatabaseUrl, Root, read_settings


def serve(
    config: Config = None,
    host: Annotated[str | None, typer.Option(metavar="HOST", help="Address to listen on.")] = None,
    port: Annotated[
        int | None, typer.Option(metavar="PORT", min=0, max=65535, help="The port. 0 means any free port.")
    ] = None,
    root: Root = None,
    database_url: DatabaseUrl = None,
) -> None:
    """Run the service until SIGTERM or Ctrl-C."""
    process.serve(read_settings(config, host=host, port=port, root=root, database_url=database_url))
