"""Compare a changed spec with a job: its spec, what is submitted, and the steps that would be repeated."""

from __future__ import annotations

import difflib
import json
from collections.abc import Iterator
from dataclasses import replace

from orchestrator.commands.drafts import draft_attempt
from orchestrator.commands.preview import render_launch
from orchestrator.configured_cluster import Cluster
from orchestrator.domain.specs.spec import JobSpec
from orchestrator.ports.jobs import JobStanding
from orchestrator.wire.plans import AgainstView, PlanView
from trainer.contract.manifest import parse_snapshot_name

_CONTEXT_LINES = 2


def compare(spec: JobSpec, standing: JobStanding, cluster: Cluster) -> AgainstView:
    """Compare with the job's newest attempt, or with its first if it has none. Nothing is stored or started."""
    job, attempt = standing.job, standing.attempt
    changed = replace(job, spec=spec)
    # Both sides get the same number and port, so that only the spec makes a difference.
    before = render_launch(job, attempt or draft_attempt(job, cluster), cluster)
    after = render_launch(changed, draft_attempt(changed, cluster, like=attempt), cluster)
    redo = _steps_behind(standing)
    step_s = standing.training.step_s
    return AgainstView(
        job=job.id,
        state=job.state,
        attempt=None if attempt is None else attempt.key.number,
        spec_changes=_differ(_lines(job.spec), _lines(spec)),
        request_changes=_differ(_shown(before), _shown(after)),
        restores=standing.newest_snapshot,
        redo_steps=redo,
        redo_s=None if redo is None or step_s is None else redo * step_s,
    )


def _steps_behind(standing: JobStanding) -> int | None:
    """Return the steps since the newest snapshot; all steps if there is none."""
    step = standing.training.step
    if step is None:
        return None
    name = None if standing.newest_snapshot is None else parse_snapshot_name(standing.newest_snapshot)
    return max(0, step - (0 if name is None else name.step))


def _lines(spec: JobSpec) -> list[str]:
    return json.dumps(spec.model_dump(mode="json", by_alias=True), indent=1, sort_keys=True).splitlines()


def _shown(plan: PlanView) -> list[str]:
    return [line for replica in plan.replicas for line in (*replica.command, *_environment(replica.env))] + [
        *plan.native_request.splitlines()
    ]


def _environment(env: dict[str, str]) -> Iterator[str]:
    yield from (f"{name}={value}" for name, value in sorted(env.items()))


def _differ(before: list[str], after: list[str]) -> list[str]:
    """Return the lines of `diff -u` without its header."""
    found = difflib.unified_diff(before, after, lineterm="", n=_CONTEXT_LINES)
    return [line for line in found if not line.startswith(("---", "+++"))]
