"""`drill` and `preflight`: small jobs that tell, before the expensive one, whether it would survive and start."""

from __future__ import annotations

from typing import Annotated

import typer

from orchestrator.cli.common import JOB_FAILED, AsJson, print_json, writing
from orchestrator.cli.render import clean
from orchestrator.cli.spec import read_spec
from orchestrator.cli.submit import Changes, File
from orchestrator.client import Client
from orchestrator.domain.spec import JobSpec
from orchestrator.domain.trials import build_drill
from orchestrator.domain.validation import parse_spec
from orchestrator.wire import JobView
from trainer.contract.curves import Curve, compare_curves

_OUTAGE_S = 600.0
_MOST_STEPS = 5000  # that the service gives unthinned
TOLERANCE = 1e-6  # nats, at the same world size


def drill(
    file: File,
    changes: Changes = None,
    steps: Annotated[int, typer.Option(min=12, max=_MOST_STEPS, help="Of each of the two runs.")] = 60,
    tolerance: Annotated[float, typer.Option(min=0, help="Nats between the curves; 16-bit arithmetic needs more.")] = (
        TOLERANCE
    ),
    as_json: AsJson = False,
) -> None:
    """Kill a worker of a job like this one, let it be restored, and compare the loss curve with an undisturbed run's.

    Two jobs of the same topology, one after the other. Exit status 0: the curves are the same.
    """
    disturbed, undisturbed = build_drill(parse_spec(read_spec(file, changes or ())), steps=steps)
    with writing() as client:
        jobs = [_run(client, spec, quiet=as_json) for spec in (disturbed, undisturbed)]
        problems = [f"{job.id} ended {job.state}: {job.reason}" for job in jobs if job.state != "SUCCEEDED"]
        restored = _told(client, jobs[0], "restored")
        if not restored:
            problems.append(f"{jobs[0].id} was restored from no snapshot")
        curves = [_curve(client, job) for job in jobs]
    compared = compare_curves(*curves, steps=steps)
    problems += compared.problems(tolerance=tolerance)
    if as_json:
        print_json(
            {
                "verdict": "failed" if problems else "passed",
                "problems": problems,
                "jobs": [job.id for job in jobs],
                "restored": restored,
                "largest_difference": compared.largest,
                "at_step": compared.step,
                "loss_fallen": compared.fallen,
            }
        )
    else:
        for sentence in (*restored, *problems):
            typer.echo(clean(sentence))
        verdict = "failed" if problems else "passed"
        typer.echo(f"drill {verdict}: largest difference of the curves {compared.largest:.3g} in {steps} steps")
    raise typer.Exit(JOB_FAILED if problems else 0)


def _run(client: Client, spec: JobSpec, *, quiet: bool) -> JobView:
    job = client.submit(spec)
    if not quiet:
        typer.echo(f"{job.id} is submitted")
    return client.wait(job.id, outage_s=_OUTAGE_S)


def _told(client: Client, job: JobView, kind: str) -> list[str]:
    return [event.sentence for event in client.events(job.id) if event.kind == kind]


def _curve(client: Client, job: JobView) -> Curve:
    found = client.metrics(job.id, names="loss", points=_MOST_STEPS)
    losses = zip(found.steps, found.series.get("loss", []), strict=False)
    return {step: loss for step, loss in losses if loss is not None}
