"""Render a LaunchPlan's processes as shell commands. Pure."""

from __future__ import annotations

import shlex

from orchestrator.domain.job.launch_plan import LaunchPlan
from orchestrator.domain.job.native_request import PROCESSES, NativeRequest


def render_processes(plan: LaunchPlan) -> NativeRequest:
    blocks = [_render_replica(plan, replica) for replica in range(plan.max_nodes)]
    return NativeRequest(kind=PROCESSES, text="\n".join(blocks))


def _render_replica(plan: LaunchPlan, replica: int) -> str:
    assignments = [f"{name}={shlex.quote(value)}" for name, value in sorted(plan.environments[replica].items())]
    command = shlex.join(plan.command)
    lines = [f"# replica {replica}: a process in its own session", f"cd {shlex.quote(plan.workdir)} &&", "env"]
    return " \\\n  ".join([lines[0] + "\n" + lines[1] + " " + lines[2], *assignments, command]) + "\n"
