"""`serve` and `db`: the leaves that load the service itself."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated

import typer

from orchestrator import process
from orchestrator.bootstrap import database
from orchestrator.cli.terminal import echo
from orchestrator.settings import Settings, load_settings

AsJson = Annotated[bool, typer.Option("--json", help="Print JSON.")]
Config = Annotated[Path | None, typer.Option(help="The settings' file, orchestrator.toml.")]
DatabaseUrl = Annotated[str | None, typer.Option(help="Without a password. Default: SQLite in the root.")]
Root = Annotated[Path | None, typer.Option(help="The run directory.")]


def serve(
    config: Config = None,
    host: Annotated[str | None, typer.Option(help="Address to listen on.")] = None,
    port: Annotated[int | None, typer.Option(min=0, max=65535, help="0: any free one.")] = None,
    root: Root = None,
    database_url: DatabaseUrl = None,
) -> None:
    """Run the service here, until SIGTERM or Ctrl-C."""
    process.serve(_settings(config, host=host, port=port, root=root, database_url=database_url))


db = typer.Typer(
    help="Upgrade the service's database, check it, back it up, or restore it.",
    no_args_is_help=True,
    rich_markup_mode=None,
    add_completion=False,
)


@db.command()
def upgrade(
    config: Config = None, root: Root = None, database_url: DatabaseUrl = None, as_json: AsJson = False
) -> None:
    """Bring the tables to this version's state. The service must not be running."""
    name = database.upgrade_database(_settings(config, root=root, database_url=database_url))
    _tell({"database": name, "status": "upgraded"}, f"{name} is up to date", as_json)


@db.command()
def check(config: Config = None, root: Root = None, database_url: DatabaseUrl = None, as_json: AsJson = False) -> None:
    """Say whether the tables are of this version; exit with 2 if not."""
    database.check_database(_settings(config, root=root, database_url=database_url))
    _tell({"status": "current"}, "the database is of this version", as_json)


@db.command()
def backup(
    file: Annotated[Path, typer.Argument(metavar="FILE", help="A new file.")],
    config: Config = None,
    root: Root = None,
    database_url: DatabaseUrl = None,
    as_json: AsJson = False,
) -> None:
    """Copy the database as it is at one moment into a file. The service may be running."""
    how = database.back_up_database(_settings(config, root=root, database_url=database_url), file)
    _tell({"file": str(file), "restore": how}, f"{file} holds the database; to restore it: {how}", as_json)


@db.command()
def restore(
    file: Annotated[Path, typer.Argument(metavar="FILE", help="A copy that `db backup` or pg_dump has made.")],
    replace: Annotated[bool, typer.Option("--replace", help="Also over a database that holds jobs.")] = False,
    config: Config = None,
    root: Root = None,
    database_url: DatabaseUrl = None,
    as_json: AsJson = False,
) -> None:
    """Give the database the content of a copy. No service may be running; jobs may."""
    name = database.restore_database(_settings(config, root=root, database_url=database_url), file, replace=replace)
    _tell(
        {"database": name, "status": "restored"}, f"{name} is as {file} has it; now: orchestrator db upgrade", as_json
    )


def _tell(document: dict[str, str], sentence: str, as_json: bool) -> None:
    echo(json.dumps(document) if as_json else sentence)


def _settings(config: Path | None, **given: object) -> Settings:
    """What the command line gives wins over file and environment. Raises ConfigurationError."""
    url = given.get("database_url")
    if isinstance(url, str):
        database.require_no_password(url)
    return load_settings(config).model_copy(update={name: value for name, value in given.items() if value is not None})
