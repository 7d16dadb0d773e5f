"""`preflight`: a small job that checks whether and where a large one can start."""

from __future__ import annotations

from dataclasses import asdict

import typer

from orchestrator.cli.clearing import Trial, try_place
from orchestrator.cli.common import JOB_FAILED, AsJson, print_json, writing
from orchestrator.cli.spec import read_spec
from orchestrator.cli.submit import Changes, File
from orchestrator.cli.terminal import say
from orchestrator.domain.specs.validation import parse_spec


def preflight(file: File, changes: Changes = None, as_json: AsJson = False) -> None:
    """Check network, storage and training steps with a small job.

    It runs one job with the same topology. The job checks the network between its nodes, their names, versions and
    clocks, the snapshot storage, an all-reduce of all nodes and of each pair, and three steps with a restore. Exit
    status 0: nothing failed.
    """
    spec = parse_spec(read_spec(file, changes or ()))
    with writing() as client:
        trial = try_place(client, spec, say=_silent if as_json else say)
    if as_json:
        print_json(_document(trial))
    raise typer.Exit(0 if trial.passed else JOB_FAILED)


def _document(trial: Trial) -> dict[str, object]:
    job = trial.job
    checks = [{name: value for name, value in asdict(each).items() if name != "nodes"} for each in trial.verdicts]
    return {
        "verdict": "passed" if trial.passed else "failed",
        "job": job.id,
        "state": job.state,
        "reason": job.reason,
        "checks": checks,
        "nodes": [{"node": each.node, "failed": list(each.checks)} for each in trial.nodes],
        "bad_nodes": list(trial.bad_nodes),
    }


def _silent(_: str) -> None:
    """With --json, print only the document."""
