"""`drill` and `preflight`: small jobs that tell, before the expensive one, whether it would survive and start."""

from __future__ import annotations

from dataclasses import asdict
from typing import Annotated

import typer

from orchestrator.cli.common import JOB_FAILED, AsJson, print_json, writing
from orchestrator.cli.render import clean
from orchestrator.cli.spec import read_spec
from orchestrator.cli.submit import Changes, File
from orchestrator.client import Client
from orchestrator.domain.spec import JobSpec
from orchestrator.domain.trials import build_drill, build_preflight
from orchestrator.domain.validation import parse_spec
from orchestrator.wire import JobView
from trainer.contract.curves import Curve, compare_curves
from trainer.contract.verdict import Outcome, parse_verdict

_OUTAGE_S = 600.0
_MOST_LINES = 1000
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
    """Kill a worker of a small job like this one and compare the loss curves.

    Two jobs of the same topology, one after the other; the first is restored from a snapshot. Exit status 0: the curves
    are the same.
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


def preflight(file: File, changes: Changes = None, as_json: AsJson = False) -> None:
    """Check in a job's place what it needs to start: network, storage, steps.

    One job of the same topology: names and clocks of its nodes, the snapshots' storage, the all-reduce, and three steps
    with a restore. Exit status 0: nothing failed.
    """
    spec = build_preflight(parse_spec(read_spec(file, changes or ())))
    with writing() as client:
        job = _run(client, spec, quiet=as_json)
        lines = client.logs(job.id, rank=0, tail=_MOST_LINES).splitlines()
    verdicts = [verdict for verdict in map(parse_verdict, lines) if verdict is not None]
    has_passed = job.state == "SUCCEEDED" and all(verdict.outcome is not Outcome.FAIL for verdict in verdicts)
    word = "passed" if has_passed else "failed"
    if as_json:
        rows = [asdict(verdict) for verdict in verdicts]
        print_json({"verdict": word, "job": job.id, "state": job.state, "reason": job.reason, "checks": rows})
    else:
        for verdict in verdicts:
            typer.echo(clean(f"{verdict.check:<10} {verdict.outcome.value:<8} {verdict.sentence}"))
        typer.echo(clean(f"preflight {word}" + ("" if has_passed else f": {job.id} ended {job.state}, {job.reason}")))
    raise typer.Exit(0 if has_passed else JOB_FAILED)


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
