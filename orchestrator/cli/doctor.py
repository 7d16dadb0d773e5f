"""`doctor`: check the configuration, and that clusters can run jobs. Needs no running service."""

from __future__ import annotations

import json
import signal
from dataclasses import asdict
from pathlib import Path
from types import FrameType
from typing import Annotated

import typer

from orchestrator.cli.common import AsJson
from orchestrator.cli.terminal import echo, say
from orchestrator.doctor.doctor import examine
from orchestrator.doctor.finding import Finding, Verdict
from orchestrator.settings import load_settings


def doctor(
    cluster: Annotated[
        str | None,
        typer.Option(metavar="CLUSTER", help="Check only this cluster. Default: the service and all clusters."),
    ] = None,
    config: Annotated[Path | None, typer.Option(metavar="FILE", help="The settings file, orchestrator.toml.")] = None,
    as_json: AsJson = False,
) -> None:
    """Check the configuration, and that clusters can run jobs.

    On Slurm it runs one short task on a node, on Kubernetes two short pods. Then it starts two workers on every cluster
    with the command that jobs get. Exit status 2: something failed.
    """
    signal.signal(signal.SIGTERM, _leave)
    found: list[Finding] = []
    for finding in examine(load_settings(config), cluster):
        found.append(finding)
        if not as_json:
            say(f"{finding.verdict:8} {finding.cluster}  {finding.check}: {finding.sentence}")
    if as_json:
        echo(json.dumps({"items": [asdict(finding) for finding in found], "next_cursor": None}))
    if any(finding.verdict is Verdict.FAILED for finding in found):
        raise typer.Exit(2)


def _leave(number: int, _frame: FrameType | None) -> None:
    """On SIGTERM, stop what was started, as on Ctrl-C."""
    raise SystemExit(128 + number)
