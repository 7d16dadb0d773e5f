"""`PYTHON program.py SCHEDULER DESCRIPTOR`: torchx's runner for one scheduler, in a process of its own.

It reads a request from each line of its input, and writes a line with each answer to the descriptor. It imports only
torchx and the standard library, so it may run in an environment with any torchx and any scheduler plugin.

    {"id": 1, "call": "submit", "app": {...}, "cfg": {...}} → {"id": 1, "value": "the app's id"}
    {"id": 2, "call": "plan", "app": {...}, "cfg": {...}}   → {"id": 2, "value": "the scheduler's request"}
    {"id": 3, "call": "look", "app": "..."}                 → {"id": 3, "value": {"state": "...", "words": "..."}}
    {"id": 4, "call": "cancel", "app": "..."}               → {"id": 4, "value": null}
    {"id": 5, "call": "schedulers"}                         → {"id": 5, "value": ["local_cwd", ...]}
    any                                                     → {"id": 1, "error": "...", "refused": true}

`refused`: torchx or the scheduler found the request itself wrong, so it would fail again. An app that torchx does not
know is null. Standard error must be a file that can be read.
"""

from __future__ import annotations

import importlib
import json
import os
import subprocess
import sys
from contextlib import suppress
from dataclasses import fields
from functools import partial
from pathlib import Path
from typing import Any

from torchx import schedulers, specs
from torchx.runner import Runner

_MOST_PRINTED, _MAX_CHARS, _MOST_KEPT = 65536, 2000, 2**20
_NO_WORDS = "<NONE>"  # torchx's default
SESSION = "torchx"  # as torchx names it


class Refused(Exception):
    """Torchx or the scheduler found the request itself wrong."""


def main() -> None:
    # Neither jobs of a scheduler on this machine nor commands of a scheduler may read or write here.
    asks, answers_to = os.dup(0), int(sys.argv[2])
    os.set_inheritable(answers_to, False)
    with Path(os.devnull).open() as nothing:
        os.dup2(nothing.fileno(), 0)
    with os.fdopen(asks) as requests, os.fdopen(answers_to, "w") as answers, open_runner() as runner:
        for line in requests:
            request = json.loads(line)
            printed = os.fstat(2).st_size
            try:
                answer = {"value": carry_out(runner, sys.argv[1], request)}
            except Exception as error:  # noqa: BLE001  # plugins raise anything
                answer = {"error": explain(error, since=printed), "refused": isinstance(error, Refused)}
            print(json.dumps({"id": request["id"], **answer}), file=answers, flush=True)
            if os.fstat(2).st_size > _MOST_KEPT:
                os.ftruncate(2, 0)


def open_runner() -> Any:
    """Return a runner with torchx's own schedulers and those of plugins, which hide the former in torchx 0.7.0."""
    own = {
        name: partial(create, module) for name, module in getattr(schedulers, "DEFAULT_SCHEDULER_MODULES", {}).items()
    }
    return Runner(SESSION, {**own, **schedulers.get_scheduler_factories()})


def create(module: str, *args: Any, **values: Any) -> Any:
    return importlib.import_module(module).create_scheduler(*args, **values)


def carry_out(runner: Any, scheduler: str, request: dict[str, Any]) -> object:
    match request["call"]:
        case "submit":
            return str(runner.schedule(plan(runner, scheduler, request))).rpartition("/")[2]
        case "plan":
            return str(plan(runner, scheduler, request))
        case "look":
            return look(runner, scheduler, request["app"])
        case "cancel":
            # torchx 0.7.0 looks at the state first, and does not understand those of an ending Slurm job.
            with suppress(AssertionError):
                runner.cancel(f"{scheduler}://{SESSION}/{request['app']}")
            return None
        case "schedulers":
            return sorted(runner.scheduler_backends())
        case call:
            raise ValueError(f"unknown call {call!r}")


def plan(runner: Any, scheduler: str, request: dict[str, Any]) -> Any:
    try:
        return runner.dryrun(build_app(request["app"]), scheduler, request["cfg"])
    except Exception as error:
        # Any other error may be one of a scheduler that looks at its cluster first.
        if isinstance(error, (ValueError, TypeError, KeyError)) or type(error).__module__.startswith("torchx."):
            raise Refused(f"{type(error).__name__}: {error}") from error
        raise


def look(runner: Any, scheduler: str, app: str) -> object:
    try:
        found = runner.status(f"{scheduler}://{SESSION}/{app}")
    except (OSError, subprocess.SubprocessError):
        raise
    except Exception as error:  # noqa: BLE001  # torchx 0.7.0 does not understand Slurm's "CANCELLED by 1000"
        return {"state": "UNKNOWN", "words": shorten(f"{type(error).__name__}: {error}")}
    if found is None:
        return None
    return {"state": found.state.name, "words": "" if found.msg in (None, _NO_WORDS) else shorten(str(found.msg))}


def build_app(document: dict[str, Any]) -> Any:
    roles = []
    for each in document["roles"]:
        own = known(specs.Role, each)
        own["resource"] = specs.Resource(**known(specs.Resource, own["resource"]))
        own["retry_policy"] = specs.RetryPolicy(own["retry_policy"])
        roles.append(specs.Role(**own))
    return specs.AppDef(name=document["name"], roles=roles, metadata=document["metadata"])


def known(kind: Any, document: dict[str, Any]) -> dict[str, Any]:
    """Return the values that this version of torchx has fields for."""
    names = {field.name for field in fields(kind) if field.init}
    return {name: value for name, value in document.items() if name in names}


def explain(error: Exception, *, since: int) -> str:
    """Name the error, with the last line that was printed since then: commands of schedulers print their reasons."""
    words = str(error) if isinstance(error, Refused) else f"{type(error).__name__}: {error}"
    printed = os.pread(2, _MOST_PRINTED, since).decode(errors="replace").strip().splitlines()
    last = printed[-1].strip() if printed and not isinstance(error, Refused) else ""
    return shorten(f"{words}: {last}" if last else words)


def shorten(words: str) -> str:
    """Return the text as one line of at most _MAX_CHARS."""
    return " ".join(words.split())[:_MAX_CHARS]


if __name__ == "__main__":
    main()
