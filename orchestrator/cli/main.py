"""The command `orchestrator`: which commands there are, and what an error looks like to a person.

Start-up is lazy by design: the module of a command is imported only when that command is asked for, so that `--help`
loads neither the HTTP client nor Rich, and only `serve` and `db` load the service.
Exit status: 0 succeeded, 1 the job failed, 2 usage or refused, 3 the service is not reachable, 130 interrupted.
"""

from __future__ import annotations

import importlib
import os
import sys
from collections.abc import Sequence
from typing import Annotated

import typer

from orchestrator.cli.terminal import echo
from orchestrator.collector import calm_collector
from orchestrator.domain.errors import InvalidSpec, OrchestratorError, Unavailable

REFUSED, UNREACHABLE = 2, 3
_CONFLICT = 409
# What to do about a refusal, by HTTP status, where its own sentence cannot know.
NEXT_STEPS = {
    400: "Is ORCHESTRATOR_URL the address that the service was told to be called by?",
    401: "Sign in: orchestrator login URL, or set ORCHESTRATOR_TOKEN.",
    403: "Your token does not allow it: ask an admin of the service for another role, then orchestrator login URL.",
    429: "Try again in a while.",
}
# Command: the module that holds it, and the first line of its docstring.
COMMANDS = {
    "serve": ("orchestrator.cli.serve", "Run the service here, until SIGTERM or Ctrl-C."),
    "submit": ("orchestrator.cli.submit", "Submit the job of a YAML or JSON file ('-': standard input)."),
    "plan": ("orchestrator.cli.submit", "Show what a job's file would launch; submit nothing."),
    "preflight": (
        "orchestrator.cli.preflight",
        "Check in a job's place what it needs to start: network, storage, steps.",
    ),
    "drill": ("orchestrator.cli.trials", "Kill a worker of a small job like this one and compare the loss curves."),
    "ls": ("orchestrator.cli.job_listing", "List jobs, newest first."),
    "show": ("orchestrator.cli.job_listing", "Show one job."),
    "logs": ("orchestrator.cli.history_commands", "Print what a job's workers wrote."),
    "events": ("orchestrator.cli.history_commands", "Tell what happened to a job."),
    "snapshots": ("orchestrator.cli.history_commands", "List a job's snapshots."),
    "stacks": ("orchestrator.cli.stacks", "Show where each rank of a running job stands, as Python stacks."),
    "why": ("orchestrator.cli.insight", "Tell why a job stands as it does, and what to do."),
    "goodput": (
        "orchestrator.cli.goodput_report",
        "Tell where a job's device time went, or that of all jobs by who had it.",
    ),
    "cancel": ("orchestrator.cli.job_actions", "End a job."),
    "delete": ("orchestrator.cli.job_actions", "Delete the record of a job that has ended."),
    "suspend": ("orchestrator.cli.job_actions", "Stop a job at a snapshot until it is resumed."),
    "resume": ("orchestrator.cli.job_actions", "Let a suspended job go on."),
    "retry": ("orchestrator.cli.job_actions", "Give a job another attempt."),
    "snapshot": ("orchestrator.cli.job_actions", "Take a snapshot of a running job now."),
    "chaos": ("orchestrator.cli.job_actions", "Inject a fault into a running job, to see it recover."),
    "scale": ("orchestrator.cli.job_actions", "Give a job another number of nodes, or a range as 2:8."),
    "clusters": ("orchestrator.cli.cluster_commands", "List the clusters and what they hold."),
    "nodes": (
        "orchestrator.cli.cluster_commands",
        "List the nodes with failures on record, or clear the record of one.",
    ),
    "secret": ("orchestrator.cli.secret", "Store, list and remove secrets."),
    "webhook": ("orchestrator.cli.webhook", "Make, list and remove webhooks."),
    "token": ("orchestrator.cli.token", "Make, list and revoke tokens."),
    "simulate": (
        "orchestrator.cli.simulate",
        "Rehearse weeks of failures on a simulated cluster, with the service's own policy.",
    ),
    "login": ("orchestrator.cli.access", "Keep a service's address and your token for it in a profile."),
    "logout": ("orchestrator.cli.access", "Forget a profile with its token."),
    "profiles": ("orchestrator.cli.access", "List the services that you have signed in to, or choose one."),
    "doctor": ("orchestrator.cli.doctor", "Check that the service is set up well and its clusters can carry jobs."),
    "db": ("orchestrator.cli.serve", "Upgrade the service's database, check it, back it up, or restore it."),
}


def main() -> None:
    """Run the command line and exit."""
    calm_collector()  # a search for garbage after each 700 objects is a tenth of the time to import a service
    arguments = sys.argv[1:]
    try:
        build_app(arguments or _words_to_complete())(arguments, prog_name="orchestrator")
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
        echo(f"orchestrator {importlib.import_module('importlib.metadata').version('elastic-orchestrator')}")
        raise typer.Exit


def _use_profile(name: str | None) -> None:
    if name is not None:
        use_profile = importlib.import_module("orchestrator.settings").use_profile
        use_profile(name)


_VERSION = typer.Option("--version", help="Print the version.", is_eager=True, callback=_print_version)
_PROFILE = typer.Option("--profile", metavar="NAME", help="One of `orchestrator profiles`.", callback=_use_profile)


def _options(version: Annotated[bool, _VERSION] = False, profile: Annotated[str | None, _PROFILE] = None) -> None:
    pass


def _words_to_complete() -> list[str]:
    """What has been typed where a shell asks how it may go on: bash says it in one variable, the others in another."""
    return (os.environ.get("COMP_WORDS") or os.environ.get("_TYPER_COMPLETE_ARGS") or "").split()[1:]


def _not_asked_for() -> None:
    raise AssertionError("a command that is run is in the arguments")


def _complain(error: OrchestratorError) -> None:
    """What is wrong, by field where fields are, and the next step."""
    problem = getattr(error, "problem", None)  # of a client's RequestRefused, whose module must not be loaded here
    if problem is not None and problem.errors:
        _say(problem.title, *(f"{field.pointer or '/'}: {field.detail}" for field in problem.errors))
    elif problem is not None:
        _say(str(error), *_list_next_steps(problem.status, getattr(error, "job_id", None)))
    elif isinstance(error, InvalidSpec):
        _say("fields are wrong", *(f"{field.pointer or '/'}: {field.message}" for field in error.problems))
    elif isinstance(error, Unavailable):
        _say(
            str(error),
            "Start it with `orchestrator serve`, set ORCHESTRATOR_URL to where it is, or: orchestrator login URL",
        )
    else:
        _say(str(error))


def _list_next_steps(status: int, job_id: str | None) -> list[str]:
    if status == _CONFLICT:
        return [] if job_id is None else [f"See how it stands: orchestrator show {job_id}"]
    return [NEXT_STEPS[status]] if status in NEXT_STEPS else []


def _say(message: str, *more: str) -> None:
    echo("\n  ".join((f"orchestrator: {message}", *more)), err=True)
