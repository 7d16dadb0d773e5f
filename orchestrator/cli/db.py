"""`db`: the commands that maintain the service's database."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated

import typer

from orchestrator.bootstrap import maintenance
from orchestrator.cli.service_settings import Config, DatabaseUrl, Root, read_settings
from orchestrator.cli.terminal import say

AsJson = Annotated[bool, typer.Option("--json", help="Print JSON.")]

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
    name = maintenance.upgrade_database(read_settings(config, root=root, database_url=database_url))
    _print_result({"database": name, "status": "upgraded"}, f"{name} is up to date", as_json)


@db.command()
def check(config: Config = None, root: Root = None, database_url: DatabaseUrl = None, as_json: AsJson = False) -> None:
    """Check that the tables have this version. Exit status 2: they have another."""
    maintenance.check_database(read_settings(config, root=root, database_url=database_url))
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
    how = maintenance.back_up_database(read_settings(config, root=root, database_url=database_url), file)
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
    name = maintenance.restore_database(
        read_settings(config, root=root, database_url=database_url), file, replace=replace
    )
    _print_result(
        {"database": name, "status": "restored"},
        f"{name} is restored from {file}; next: orchestrator db upgrade",
        as_json,
    )


def _print_result(document: dict[str, str], sentence: str, as_json: bool) -> None:
    say(json.dumps(document) if as_json else sentence)
