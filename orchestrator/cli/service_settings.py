"""Options of the commands that run on the service's machine, and the settings that they give."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from orchestrator.bootstrap.database import require_no_password
from orchestrator.settings import Settings, load_settings

Config = Annotated[Path | None, typer.Option(metavar="FILE", help="The settings file, orchestrator.toml.")]
DatabaseUrl = Annotated[
    str | None,
    typer.Option(metavar="URL", help="URL of the database, without a password. Default: SQLite in the root."),
]
Root = Annotated[Path | None, typer.Option(metavar="FOLDER", help="The run directory.")]


def read_settings(config: Path | None, **given: object) -> Settings:
    """Read the settings. The command line takes precedence over file and environment. Raises ConfigurationError."""
    url = given.get("database_url")
    if isinstance(url, str):
        require_no_password(url)
    return load_settings(config).model_copy(update={name: value for name, value in given.items() if value is not None})
