"""The command `orchestrator`: which commands there are, and what an error looks like to a person.

Start-up is lazy by design: the module of a command is imported only when that command is asked for, so that `--help`
loads neither the HTTP client nor Rich, and only `serve` and `db` load the service.
Exit status: 0 succeeded, 1 the job failed, 2 usage or refused, 3 the service is not reachable, 130 interrupted.
"""

from __future__ import annotations

import importlib
import sys
from collections.abc import Sequence
from typing import Annotated

import typer

from orchestrator.domain.errors import InvalidSpec, OrchestratorError, Unavailable

REFUSED, UNREACHABLE = 2, 3
# Command: the module that holds it, and the first line of its docstring.
COMMANDS = {
    "serve": ("orchestrator.cli.service", "Run the service here, until SIGTERM or Ctrl-C."),
    "submit": ("orchestrator.cli.submit", "Submit the job of a YAML or JSON file ('-': standard input)."),
    "plan": ("orchestrator.cli.submit", "Show what a job's file would launch; submit nothing."),
    "preflight": ("orchestrator.cli.trials", "Check in a job's place what it needs to start: network, storage, steps."),
    "drill": ("orchestrator.cli.trials", "Kill a worker of a small job like this one and compare the loss curves."),
    "ls": ("orchestrator.cli.jobs", "List jobs, newest first."),
    "show": ("orchestrator.cli.jobs", "Show one job."),
    "logs": ("orchestrator.cli.history", "Print what a job's workers wrote."),
    "events": ("orchestrator.cli.history", "Tell what happened to a job."),
    "snapshots": ("orchestrator.cli.history", "List a job's snapshots."),
    "cancel": ("orchestrator.cli.wishes", "End a job."),
    "suspend": ("orchestrator.cli.wishes", "Stop a job at a snapshot until it is resumed."),
    "resume": ("orchestrator.cli.wishes", "Let a suspended job go on."),
    "retry": ("orchestrator.cli.wishes", "Give a job another attempt."),
    "snapshot": ("orchestrator.cli.wishes", "Take a snapshot of a running job now."),
    "scale": ("orchestrator.cli.wishes", "Give a job another number of nodes, or a range as 2:8."),
    "clusters": ("orchestrator.cli.clusters", "List the clusters and what they hold."),
    "nodes": ("orchestrator.cli.clusters", "List the nodes with failures in their record."),
    "simulate": (
        "orchestrator.cli.simulate",
        "Rehearse weeks of failures on a simulated cluster, with the service's own policy.",
    ),
    "db": ("orchestrator.cli.service", "Upgrade the service's database, or check it."),
}


def main() -> None:
    """Run the command line and exit."""
    arguments = sys.argv[1:]
    try:
        build_app(arguments)(arguments, prog_name="orchestrator")
    except OrchestratorError as error:
        _complain(error)
        sys.exit(UNREACHABLE if isinstance(error, Unavailable) else REFUSED)
    except KeyboardInterrupt:
        sys.exit(130)
    except Exception as error:  # the outermost edge: a bug, told in a line
        if sys.flags.dev_mode:
            raise
        _say(f"internal error: {type(error).__name__}: {error}", "this is a bug; PYTHONDEVMODE=1 shows where")
        sys.exit(REFUSED)


def build_app(arguments: Sequence[str]) -> typer.Typer:
    """All commands by name; the real ones where `arguments` mention them, else their line of help."""
    app = typer.Typer(
        help="Run PyTorch training jobs that do not die.",
        no_args_is_help=True,
        add_completion=False,
        rich_markup_mode=None,
        pretty_exceptions_enable=False,
    )
    app.callback()(_options)
    for name, (module, summary) in COMMANDS.items():
        if name not in arguments:
            app.command(name, help=summary)(_not_asked_for)
            continue
        command = getattr(importlib.import_module(module), name)
        if isinstance(command, typer.Typer):
            app.add_typer(command, name=name)
        else:
            app.command(name)(command)
    return app


def _print_version(wanted: bool) -> None:
    if wanted:
        typer.echo(f"orchestrator {importlib.import_module('importlib.metadata').version('elastic-orchestrator')}")
        raise typer.Exit


_VERSION = typer.Option("--version", help="Print the version.", is_eager=True, callback=_print_version)


def _options(version: Annotated[bool, _VERSION] = False) -> None:
    pass


def _not_asked_for() -> None:
    raise AssertionError("a command that is run is in the arguments")


def _complain(error: OrchestratorError) -> None:
    """What is wrong, by field where fields are, and the next step."""
    problem = getattr(error, "problem", None)  # of a client's RequestRefused, whose module must not be loaded here
    if problem is not None and problem.errors:
        _say(problem.title, *(f"{field.pointer or '/'}: {field.detail}" for field in problem.errors))
    elif isinstance(error, InvalidSpec):
        _say("fields are wrong", *(f"{field.pointer or '/'}: {field.message}" for field in error.problems))
    elif isinstance(error, Unavailable):
        _say(str(error), "Start it with `orchestrator serve`, or set ORCHESTRATOR_URL to where it is.")
    else:
        _say(str(error))


def _say(message: str, *more: str) -> None:
    typer.echo("\n  ".join((f"orchestrator: {message}", *more)), err=True)
