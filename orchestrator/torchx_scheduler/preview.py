"""Render the service's dry run for torchx as comments below the spec, so that the output is still a valid job file."""

from __future__ import annotations

import shlex
from collections.abc import Iterator

from orchestrator.domain.job.native_request import PROCESSES
from orchestrator.domain.terminal import clean_line
from orchestrator.wire.plans import PlanView


def render_preview(plan: PlanView) -> str:
    """Render warnings, each replica's command, and the native request if it differs."""
    return "\n".join(f"# {clean_line(line)}".rstrip() for line in _lines(plan))


def _lines(plan: PlanView) -> Iterator[str]:
    for warning in plan.warnings:
        yield f"warning: {warning}"
    for replica in plan.replicas if plan.native_kind != PROCESSES else ():  # the native request is these commands
        yield f"replica {replica.replica}: {shlex.join(replica.command)}"
    yield f"{plan.native_kind}:"
    yield from plan.native_request.splitlines()
