"""The command `orchestrator`: the list of commands, and how errors are printed.

Start-up is lazy by design: the module of a command is imported only when that command is asked for, so that `--help`
loads neither the HTTP client nor Rich, and only `serve` and `db` load the service.
With --json an error is JSON too, on standard error.
Exit status: 0 succeeded, 1 the job failed, 2 usage or refused, 3 the service is not reachable, 130 interrupted.
"""

from __future__ import annotations

import importlib
import io
import os
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, nullcontext
from typing import Annotated

import typer
from typer.core import TyperArgument

from orchestrator.cli.terminal import echo, say
from orchestrator.collector import calm_collector
from orchestrator.domain.errors import InvalidSpec, OrchestratorError, Unavailable, own_message
from orchestrator.domain.field_rules import describe_rule
from orchestrator.domain.terminal import dump_json

ABORTED, REFUSED, UNREACHABLE = 1, 2, 3
_CONFLICT = 409
# typer has no public name for the base class of its errors of usage.
_UsageError: type[typer.BadParameter] = typer.BadParameter.__mro__[1]
# Without this, the help of an argument names its type in Python behind its name.
TyperArgument.display_type_rich = lambda self, ctx: None  # type: ignore[method-assign]
# What to do about a refused request, by HTTP status.
NEXT_STEPS = {
    400: "Is ORCHESTRATOR_URL an address that the service accepts?",
    401: "Sign in with orchestrator login URL, or set ORCHESTRATOR_TOKEN.",
    403: "Your token does not allow this. Ask an admin for another role, then run orchestrator login URL.",
    429: "Try again later.",
}
PASSES_OPTIONS_ON = "run"  # options behind its first argument belong to the program that it runs
# For each command its module, and the first line of its docstring.
COMMANDS = {
    "serve": ("orchestrator.cli.serve", "Run the service until SIGTERM or Ctrl-C."),
    "run": ("orchestrator.cli.run", "Run a script or program as a job, and show its output."),
    "init": ("orchestrator.cli.init", "Write a job file with the common fields, their defaults and what they mean."),
    "submit": ("orchestrator.cli.submit", "Submit a job from a YAML or JSON file."),
    "resubmit": (
        "orchestrator.cli.run",
        "Submit the spec of an earlier job again, changed by --set, as a new job.",
    ),
    "plan": ("orchestrator.cli.submit", "Show what a job file would launch, without submitting it."),
    "preflight": (
        "orchestrator.cli.preflight",
        "Check network, storage and training steps with a small job.",
    ),
    "drill": ("orchestrator.cli.trials", "Kill a worker of a small copy of a job; compare loss curves."),
    "ls": ("orchestrator.cli.job_listing", "List jobs, newest first."),
    "show": ("orchestrator.cli.show", "Show one job."),
    "logs": ("orchestrator.cli.history_commands", "Print the logs of a job's workers."),
    "events": ("orchestrator.cli.history_commands", "List a job's events."),
    "snapshots": ("orchestrator.cli.history_commands", "List a job's snapshots."),
    "stacks": ("orchestrator.cli.stacks", "Show the Python stacks of a job's ranks."),
    "resources": ("orchestrator.cli.resources", "Show the memory, CPU and GPU use of each rank."),
    "why": ("orchestrator.cli.insight", "Explain the state of a job and what to do next."),
    "goodput": (
        "orchestrator.cli.goodput_report",
        "Show where the device time of a job, or of all jobs, went.",
    ),
    "array": ("orchestrator.cli.array", "Show, cancel and retry arrays."),
    "compare": (
        "orchestrator.cli.comparing",
        "Compare a metric of several jobs, and list what differs in their specs.",
    ),
    "cancel": ("orchestrator.cli.job_actions", "Cancel a job."),
    "delete": ("orchestrator.cli.job_actions", "Delete the record of a job that has ended."),
    "suspend": ("orchestrator.cli.job_actions", "Take a snapshot if possible, and stop a job until it is resumed."),
    "resume": ("orchestrator.cli.job_actions", "Resume a suspended job."),
    "retry": ("orchestrator.cli.job_actions", "Start another attempt of a job."),
    "snapshot": ("orchestrator.cli.job_actions", "Take a snapshot of a running job now."),
    "chaos": ("orchestrator.cli.job_actions", "Inject a fault into a running job, to test its recovery."),
    "scale": ("orchestrator.cli.job_actions", "Change a job's number of nodes, or its range."),
    "clusters": ("orchestrator.cli.cluster_commands", "List the clusters, with their nodes and jobs."),
    "nodes": (
        "orchestrator.cli.cluster_commands",
        "List nodes with recorded failures, or clear a record.",
    ),
    "secret": ("orchestrator.cli.secret", "Store, list and remove secrets."),
    "webhook": ("orchestrator.cli.webhook", "Create, list and remove webhooks."),
    "token": ("orchestrator.cli.token", "Create, list and revoke tokens."),
    "simulate": (
        "orchestrator.cli.simulate",
        "Simulate weeks of failures with the service's own policy.",
    ),
    "login": ("orchestrator.cli.access", "Store a service's address and your token in a profile."),
    "logout": ("orchestrator.cli.access", "Delete a profile and its token."),
    "profiles": ("orchestrator.cli.access", "List the services that you have signed in to, or choose one."),
    "doctor": ("orchestrator.cli.doctor", "Check the configuration, and that clusters can run jobs."),
    "db": ("orchestrator.cli.db", "Upgrade, check, back up or restore the database."),
}


def main() -> None:
    """Run the command line and exit."""
    sys.modules["httpx._main"] = None  # type: ignore[assignment]  # httpx's own command line takes 30 ms to import
    calm_collector()  # collecting garbage after every 700 objects takes a tenth of the time to import a service
    arguments = sys.argv[1:]
    try:
        # The service needs no Rich, but structlog would load it, with Pygments: 8 MB.
        with _hidden("rich") if arguments[:1] == ["serve"] else nullcontext():
            app = build_app(arguments or _words_to_complete())
        status = app(arguments, prog_name="orchestrator", standalone_mode=False)
    except _UsageError as error:
        _print_usage_error(error)
        sys.exit(REFUSED)
    except typer.Abort:
        say("Aborted.", err=True)
        sys.exit(ABORTED)
    except OrchestratorError as error:
        _print_error(error)
        sys.exit(UNREACHABLE if isinstance(error, Unavailable) else REFUSED)
    except KeyboardInterrupt:
        sys.exit(130)
    except Exception as error:  # a bug
        if sys.flags.dev_mode:
            raise
        _print_lines(f"internal error: {type(error).__name__}: {error}", "this is a bug; PYTHONDEVMODE=1 shows where")
        sys.exit(REFUSED)
    sys.exit(status)


@contextmanager
def _hidden(module: str) -> Iterator[None]:
    """Let imports of the module fail meanwhile."""
    before = sys.modules.get(module)
    sys.modules[module] = None  # type: ignore[assignment]
    try:
        yield
    finally:
        del sys.modules[module]
        if before is not None:
            sys.modules[module] = before


def build_app(arguments: Sequence[str]) -> typer.Typer:
    """Build the application with all commands. Modules of commands that `arguments` does not name are not imported."""
    app = typer.Typer(
        help="Run PyTorch training jobs that survive failures.",
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
            app.command(name, context_settings={"allow_interspersed_args": name != PASSES_OPTIONS_ON})(command)
    return app


def _print_version(wanted: bool) -> None:
    if wanted:
        echo(f"orchestrator {importlib.import_module('importlib.metadata').version('elastic-orchestrator')}")
        raise typer.Exit


def _use_profile(name: str | None) -> None:
    if name is not None:
        use_profile = importlib.import_module("orchestrator.client_settings").use_profile
        use_profile(name)


_VERSION = typer.Option("--version", help="Print the version.", is_eager=True, callback=_print_version)
_PROFILE = typer.Option(
    "--profile", metavar="PROFILE", help="A profile of `orchestrator profiles`.", callback=_use_profile
)


def _options(version: Annotated[bool, _VERSION] = False, profile: Annotated[str | None, _PROFILE] = None) -> None:
    pass


def _words_to_complete() -> list[str]:
    """Return the words typed so far during shell completion. bash passes them in another variable than other shells."""
    return (os.environ.get("COMP_WORDS") or os.environ.get("_TYPER_COMPLETE_ARGS") or "").split()[1:]


def _not_asked_for() -> None:
    raise AssertionError("a command that is run is in the arguments")


def _print_error(error: OrchestratorError) -> None:
    """Print the error, by field if it names fields, and the next step."""
    problem = getattr(error, "problem", None)  # of a client's RequestRefused, whose module must not be loaded here
    if problem is not None and problem.errors:
        _print_lines(problem.title, *(f"{field.pointer or '/'}: {field.detail}" for field in problem.errors))
    elif problem is not None:
        _print_lines(str(error), *_list_next_steps(problem.status, getattr(error, "job_id", None)))
    elif isinstance(error, InvalidSpec):
        _print_lines(
            "some fields are invalid", *(f"{field.pointer or '/'}: {field.message}" for field in error.problems)
        )
    elif isinstance(error, Unavailable):
        _print_lines(
            str(error),
            "Start it with `orchestrator serve`, set ORCHESTRATOR_URL to its address, or: orchestrator login URL",
        )
    else:
        _print_lines(str(error))


def _print_usage_error(error: typer.BadParameter) -> None:
    """Print what is wrong with the arguments. typer passes on messages of pydantic."""
    list_errors = getattr(error.__cause__, "errors", None)  # of a ValidationError, whose module takes long to import
    error.message = own_message(error.message) if list_errors is None else describe_rule(list_errors()[0])
    if "--json" not in sys.argv:
        shown = io.StringIO()
        error.show(shown)
        say(shown.getvalue().rstrip(), err=True)
        return
    usage = [] if error.ctx is None else [error.ctx.get_usage(), f"Try '{error.ctx.command_path} --help' for help."]
    _print_lines(error.format_message(), *usage)


def _list_next_steps(status: int, job_id: str | None) -> list[str]:
    if status == _CONFLICT:
        return [] if job_id is None else [f"See its state: orchestrator show {job_id}"]
    return [NEXT_STEPS[status]] if status in NEXT_STEPS else []


def _print_lines(message: str, *more: str) -> None:
    if "--json" in sys.argv:
        echo(dump_json({"error": message, "details": more}), err=True)
    else:
        say("\n  ".join((f"orchestrator: {message}", *more)), err=True)
