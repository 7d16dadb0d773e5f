"""Render a LaunchPlan's processes as shell commands. Pure."""

from __future__ import annotations

import shlex

from orchestrator.domain.job.launch_plan import LaunchPlan
from orchestrator.domain.job.native_request import PROCESSES, NativeRequest
from trainer.contract import env


def render_processes(plan: LaunchPlan) -> NativeRequest:
    last = plan.max_nodes - 1
    if last == 0:
        only = _render(plan, "0")
        return NativeRequest(kind=PROCESSES, text=f"# replica 0: a process in its own session\n{only}\n")
    title = f"# replicas 0 to {last}: each a process in its own session, all at the same time"
    each = _render(plan, '"$replica"')
    return NativeRequest(kind=PROCESSES, text=f"{title}\nfor replica in {{0..{last}}}; do ({each}) done\n")


def _render(plan: LaunchPlan, replica: str) -> str:
    variables = sorted(plan.shared_environment.items())
    assignments = [f"{name}={shlex.quote(value)}" for name, value in variables]
    start = f"cd {shlex.quote(plan.workdir)} && env"
    return " \\\n  ".join([start, *assignments, f"{env.REPLICA}={replica}", shlex.join(plan.command)])
