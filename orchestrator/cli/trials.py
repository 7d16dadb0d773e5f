"""`drill`: two small jobs that show whether a large one would survive a fault."""

from __future__ import annotations

from typing import Annotated

import typer

from orchestrator.cli.common import JOB_FAILED, AsJson, print_json, writing
from orchestrator.cli.judging import MOST_STEPS, inject, judge
from orchestrator.cli.spec import read_spec
from orchestrator.cli.submit import Changes, File
from orchestrator.cli.terminal import say
from orchestrator.client import Client
from orchestrator.domain.specs.spec import JobSpec
from orchestrator.domain.specs.trials import build_drill
from orchestrator.domain.specs.validation import parse_spec
from orchestrator.wire.job_views import JobView
from trainer.contract.chaos import Fault

TOLERANCE = 1e-6  # nats, at the same world size


def drill(
    file: File,
    changes: Changes = None,
    fault: Annotated[
        Fault, typer.Option(help="The fault to inject. Any fault but kill needs the role operator.", metavar="FAULT")
    ] = Fault.KILL,
    steps: Annotated[
        int, typer.Option(metavar="N", min=12, max=MOST_STEPS, help="Steps of each of the two runs.")
    ] = 60,
    tolerance: Annotated[
        float,
        typer.Option(
            metavar="NATS",
            min=0,
            help="Largest allowed difference of the curves, in nats. 16-bit arithmetic needs more.",
        ),
    ] = TOLERANCE,
    as_json: AsJson = False,
) -> None:
    """Kill a worker of a small copy of a job; compare loss curves.

    It runs two small jobs with the same topology and the lowest priority, one after the other. The first gets the fault
    and must recover. Exit status 0: it recovered, and the curves are the same.
    """
    disturbed, undisturbed = build_drill(parse_spec(read_spec(file, changes or ())), steps=steps, fault=fault)
    at_step = int(disturbed.run.args[1])
    with writing() as client:
        struck: JobView = client.submit(disturbed)
        _announce(f"{struck.id} is submitted", quiet=as_json)
        if fault is not Fault.KILL:
            inject(client, struck.id, fault, at_step=at_step)
        struck = client.wait(struck.id)
        jobs = [struck, _run(client, undisturbed, quiet=as_json)]
        verdict = judge(client, jobs, fault, at_step=at_step, steps=steps, tolerance=tolerance)
    if as_json:
        print_json(verdict.document())
    else:
        for sentence in (*verdict.restored, *verdict.problems):
            say(sentence)
        say(verdict.sentence(steps))
    raise typer.Exit(JOB_FAILED if verdict.problems else 0)


def _run(client: Client, spec: JobSpec, *, quiet: bool) -> JobView:
    job = client.submit(spec)
    _announce(f"{job.id} is submitted", quiet=quiet)
    return client.wait(job.id)


def _announce(sentence: str, *, quiet: bool) -> None:
    if not quiet:
        say(sentence)
