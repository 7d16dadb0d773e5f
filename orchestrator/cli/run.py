"""`run`: submit a script, module or program without a file, and follow it. `resubmit`: an earlier job's spec again."""

from __future__ import annotations

import shutil
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated

import typer

from orchestrator.cli.common import AsJson, JobId, find_job, print_json, writing
from orchestrator.cli.follow import attend
from orchestrator.cli.spec import apply_changes
from orchestrator.cli.submit import OLD_LINES, Changes, print_note
from orchestrator.cli.terminal import echo
from orchestrator.client import Client
from orchestrator.domain.errors import Refused
from orchestrator.domain.specs.spec import make_name

Detach = Annotated[bool, typer.Option("-d", "--detach", help="Submit only; do not follow the job.")]


def run(
    program: Annotated[
        list[str], typer.Argument(metavar="PROGRAM", help="A Python file, or a program. Then its arguments.")
    ],
    workers: Annotated[
        int | None,
        typer.Option("-n", "--workers", min=1, metavar="N", help="Workers per node. Default: one for each GPU, or 1."),
    ] = None,
    gpus: Annotated[int, typer.Option(min=0, metavar="N", help="GPUs per node.")] = 0,
    nodes: Annotated[str, typer.Option(metavar="NODES", help="The number of nodes, or a range.")] = "1",
    is_module: Annotated[bool, typer.Option("-m", "--module", help="PROGRAM is a module, as in `python -m`.")] = False,
    name: Annotated[str | None, typer.Option(metavar="NAME", help="The job's name. Default: PROGRAM's.")] = None,
    cluster: Annotated[
        str | None, typer.Option(metavar="CLUSTER", help="A cluster of `orchestrator clusters`.")
    ] = None,
    variables: Annotated[
        list[str] | None, typer.Option("--env", metavar="NAME=VALUE", help="An environment variable. Repeatable.")
    ] = None,
    changes: Changes = None,
    detach: Detach = False,
    as_json: AsJson = False,
) -> None:
    """Run a script or program as a job, and show its output.

    `orchestrator run -n 2 train.py --lr 3e-4` runs train.py on two workers. A PROGRAM that does not end in .py is
    started as it is. The workdir is the current folder. Ctrl-C asks whether to cancel the job or to leave it running.
    The exit status is the job's: 0 succeeded, 1 failed or cancelled.
    """
    wrong = next((each for each in variables or () if "=" not in each), None)
    if wrong is not None:
        raise Refused(f"--env {wrong}: must be like NAME=VALUE")
    width = workers if workers is not None else "gpu" if gpus else 1
    document: dict[str, object] = {
        "name": name or name_of(program[0]),
        "run": {**_what(program, is_module=is_module), "workdir": str(Path.cwd())},
        "topology": {"nodes": nodes, "workers_per_node": width},
        "resources": {"gpus": gpus},
    }
    if cluster is not None:
        document["cluster"] = cluster
    apply_changes(document, [*(f"run.env.{each}" for each in variables or ()), *(changes or ())])
    with writing() as client:
        _start(client, document, detach=detach, as_json=as_json)


def resubmit(
    job_id: JobId,
    changes: Changes = None,
    name: Annotated[str | None, typer.Option(metavar="NAME", help="Another name.")] = None,
    detach: Detach = False,
    as_json: AsJson = False,
) -> None:
    """Submit the spec of an earlier job again, changed by --set, as a new job.

    The new job starts from its beginning. To continue from a snapshot, use `retry`, or set snapshot.from. Follows the
    job as `run` does.
    """
    with writing() as client:
        old = find_job(client, job_id)
        document = old.spec.outside_array().model_dump(mode="json", exclude_defaults=True)
        document["name"] = name or old.name
        apply_changes(document, changes or ())
        _start(client, document, detach=detach, as_json=as_json)


def _start(client: Client, document: dict[str, object], *, detach: bool, as_json: bool) -> None:
    job = client.submit(document)
    for warning in job.warnings:
        print_note(f"warning: {warning}")
    print_note(f"submitted {job.id} to {client.url}")
    if not detach:
        attend(client, job, follow=True, as_json=as_json, old_lines=OLD_LINES, ask=True)
    elif as_json:
        print_json(job)
    else:
        echo(job.id)


def _what(program: Sequence[str], *, is_module: bool) -> dict[str, object]:
    """Raises Refused for a folder, unless a program on the path has the same name."""
    first, args = program[0], list(program[1:])
    if is_module:
        return {"module": first, "args": args}
    if Path(first).is_dir() and shutil.which(first) is None:
        raise Refused(f"{first} is a folder; name a Python file or a program in it")
    if first.endswith(".py"):
        return {"script": first, "args": args}
    return {"command": list(program)}


def name_of(program: str) -> str:
    """Return a name for the job of a program. Raises Refused if it has no letter and no digit."""
    name = make_name(Path(program).name.removesuffix(".py"))
    if not name:
        raise Refused(f"{program!r} gives the job no name; it needs a letter or a digit")
    return name
