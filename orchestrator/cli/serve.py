"""`serve` and `db`: the commands that import the service."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated

import typer

from orchestrator import process
from orchestrator.bootstrap import database
from orchestrator.cli.terminal import say
from orchestrator.settings import Settings, load_settings

AsJson = Annotated[bool, typer.Option("--json", help="Print JSON.")]
Config = Annotated[Path | None, typer.Option(metavar="FILE", help="The settings file, orchestrator.toml.")]
DatabaseUrl = Annotated[
    str | None,
    typer.Option(metavar="URL", help="URL of the database, without a password. Default: SQLite in the root."),
]
Root = Annotated[Path | None, typer.Option(metavar="FOLDER", help="The run directory.")]


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
    process.serve(_settings(config, host=host, port=port, root=root, database_url=database_url))


db = typer.Typer(
    help="Upgrade, check, back up or restore the database.",
    no_args_is_help=True,
    rich_markup_mode=None,
    add_completion=False,
)


@db.command()
def upgrade(
    config: Config = None, root: Root = None, database_url: DatabaseUrl = None, as_json: AsJson = False
) -> None:
    """Upgrade the tables to this version. Stop the service first."""
    name = database.upgrade_database(_settings(config, root=root, database_url=database_url))
    _print_result({"database": name, "status": "upgraded"}, f"{name} is up to date", as_json)


@db.command()
def check(config: Config = None, root: Root = None, database_url: DatabaseUrl = None, as_json: AsJson = False) -> None:
    """Check that the tables have this version. Exit status 2: they have another."""
    database.check_database(_settings(config, root=root, database_url=database_url))
    _print_result({"status": "current"}, "the database has this version", as_json)


@db.command()
def backup(
    file: Annotated[Path, typer.Argument(metavar="FILE", help="The file to create.")],
    config: Config = None,
    root: Root = None,
    database_url: DatabaseUrl = None,
    as_json: AsJson = False,
) -> None:
    """Write a consistent copy of the database to a file. The service may run."""
    how = database.back_up_database(_settings(config, root=root, database_url=database_url), file)
    _print_result(
        {"file": str(file), "restore": how}, f"the database is copied to {file}; to restore it: {how}", as_json
    )


@db.command()
def restore(
    file: Annotated[Path, typer.Argument(metavar="FILE", help="A file from `db backup` or pg_dump.")],
    replace: Annotated[bool, typer.Option("--replace", help="Replace a database that contains jobs.")] = False,
    config: Config = None,
    root: Root = None,
    database_url: DatabaseUrl = None,
    as_json: AsJson = False,
) -> None:
    """Restore the database from a copy. Stop the service first. Jobs may run."""
    name = database.restore_database(_settings(config, root=root, database_url=database_url), file, replace=replace)
    _print_result(
        {"database": name, "status": "restored"},
        f"{name} is restored from {file}; next: orchestrator db upgrade",
        as_json,
    )


def _print_result(document: dict[str, str], sentence: str, as_json: bool) -> None:
    say(json.dumps(document) if as_json else sentence)


def _settings(config: Path | None, **given: object) -> Settings:
    """Read the settings. The command line takes precedence over file and environment. Raises ConfigurationError."""
    url = given.get("database_url")
    if isinstance(url, str):
        database.require_no_password(url)
    return load_settings(config).model_copy(update={name: value for name, value in given.items() if value is not None})
