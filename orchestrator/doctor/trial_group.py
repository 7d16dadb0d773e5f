"""Start two workers with the same launch plan, backend and command as a job.

The test finds errors that only show when an agent starts, such as a torch version that the agent cannot use, a port or
host name that it cannot reach, or a folder that it cannot write. It leaves only the agent's package in the run
directory, which jobs share.
"""

from __future__ import annotations

import random
import secrets
import tempfile
import time
from contextlib import suppress
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from pathlib import Path

from orchestrator import rundir
from orchestrator.configured_cluster import Cluster
from orchestrator.doctor.finding import CheckResult, Verdict
from orchestrator.domain.errors import BackendUnavailable, LaunchRefused
from orchestrator.domain.job.attempt import Attempt, AttemptKey, AttemptState
from orchestrator.domain.job.job import Desired, Job, JobState
from orchestrator.domain.job.launch_plan import LaunchPlan, Site, build_plan
from orchestrator.domain.observation.observation import Presence, Sighting
from orchestrator.domain.specs.spec import JobSpec
from orchestrator.jobfolder.removal import drop
from trainer.contract import layout
from trainer.contract.exit_record import ExitRecord, Outcome

CHECK = "group"
_ABSENT_S = 15.0  # a cluster may need this long to list a new submission
_POLL_S = 0.3
_LAST_LINES_BYTES = 4096


@dataclass(frozen=True, slots=True, kw_only=True)
class Timeouts:
    begin_s: float = 180.0  # from the submission to the start of the agent
    meet_s: float = 120.0  # from the start of the agent until the workers have formed a group
    end_s: float = 30.0  # from the cancellation until nothing is left


def try_group(cluster: Cluster, site: Site, timeouts: Timeouts = Timeouts()) -> CheckResult:
    """Start two workers. Blocks until they form a group, fail or time out. `site` is as in a job's plan."""
    with tempfile.TemporaryDirectory() as workdir:
        plan = build_group_plan(cluster, site, workdir=workdir if cluster.shares_files else "/")
        began = time.monotonic()
        try:
            cluster.backend.submit(plan)
            return _judge(cluster, plan, timeouts, began)
        except LaunchRefused as error:
            return CHECK, Verdict.FAILED, f"cannot start two workers: {error}"
        except (BackendUnavailable, OSError) as error:
            return CHECK, Verdict.FAILED, f"cannot run the test with two workers: {error}"
        finally:
            _clear(cluster, plan, timeouts)


def build_group_plan(cluster: Cluster, site: Site, *, workdir: str) -> LaunchPlan:
    """Build a job's plan with one node and two workers without a device."""
    key, now = AttemptKey(f"doctor-{secrets.token_hex(4)}", 1), datetime.now(UTC)
    spec = JobSpec.model_validate(
        {
            "name": "doctor",
            "cluster": cluster.name,
            "run": {"module": "trainer.checks.rollcall", "workdir": workdir},
            "topology": {"nodes": "1", "workers_per_node": 2},
            "supervise": {"budgets": {"application": 0}},
        }
    )
    job = Job(
        id=key.job_id,
        spec=spec,
        state=JobState.STARTING,
        reason="test of doctor",
        desired=Desired(),
        created_at=now,
        updated_at=now,
    )
    attempt = Attempt(
        key=key,
        state=AttemptState.INTENDED,
        reason="test of doctor",
        nonce=secrets.token_hex(4),
        port=random.choice(cluster.ports),
        nodes="1",
        asked="1",
        created_at=now,
    )
    return build_plan(job, attempt, replace(site, report_url=None))


def _judge(cluster: Cluster, plan: LaunchPlan, timeouts: Timeouts, began: float) -> CheckResult:
    deadline, runs, node = began + timeouts.begin_s, False, None
    while True:
        seen = cluster.backend.observe({plan.key: 1})[plan.key]
        node = _node_of(seen) or node  # the sighting of an ended agent names no node
        record, now = _find_record(cluster, plan), time.monotonic()
        if record is not None:
            return _judge_record(record, node, now - began)
        if seen.presence is Presence.RUNNING and not runs:
            runs, deadline = True, now + timeouts.meet_s
        gone = seen.presence is Presence.GONE or (seen.presence is Presence.ABSENT and now - began > _ABSENT_S)
        if gone:
            why = seen.evidence if seen.cause is None else seen.cause.message
            return CHECK, Verdict.FAILED, f"two workers did not start: {why}{_last_line(cluster, plan)}"
        if now > deadline and not runs:
            waits = f"two workers did not start within {timeouts.begin_s:.0f} s: {seen.evidence}"
            return CHECK, Verdict.WARNING, f"{waits}; try again when the cluster has free slots"
        if now > deadline:
            why = f"two workers formed no group within {timeouts.meet_s:.0f} s of their agent's start"
            return CHECK, Verdict.FAILED, f"{why}{_last_line(cluster, plan)}"
        time.sleep(_POLL_S)


def _judge_record(record: ExitRecord, node: str | None, seconds: float) -> CheckResult:
    if record.outcome is Outcome.SUCCEEDED:
        where = "" if node is None else f" on {node}"
        return CHECK, Verdict.OK, f"two workers formed a group{where} after {seconds:.0f} s"
    why = record.outcome.value if record.failure is None else record.failure.message
    return CHECK, Verdict.FAILED, f"two workers formed no group: {why}"


def _find_record(cluster: Cluster, plan: LaunchPlan) -> ExitRecord | None:
    with rundir.open_attempt(cluster.folder(plan.key.job_id), plan.key.number) as attempt:
        lives = list(rundir.incarnations(attempt, range(1))) if attempt.exists else []
        return lives[-1].exit() if lives else None


def _node_of(seen: Sighting) -> str | None:
    return next((one.node for one in seen.replicas if one.node is not None), None)


def _last_line(cluster: Cluster, plan: LaunchPlan) -> str:
    """Return the last line that the agent, or the program that starts it, printed."""
    with suppress(OSError), rundir.open_attempt(cluster.folder(plan.key.job_id), plan.key.number) as attempt:
        lines = attempt.last_lines(Path(f"replica-0/{layout.AGENT_LOG}"), size=_LAST_LINES_BYTES)
        return f"; the last line of its log: {lines[-1][:300]}" if lines else ""
    return ""


def _clear(cluster: Cluster, plan: LaunchPlan, timeouts: Timeouts) -> None:
    """End the attempt, then remove its folder."""
    deadline = time.monotonic() + timeouts.end_s
    with suppress(BackendUnavailable, LaunchRefused, OSError):
        cluster.backend.cancel(plan.key, force=True)
        while time.monotonic() < deadline:
            seen = cluster.backend.observe({plan.key: 1})[plan.key]
            if seen.presence in (Presence.GONE, Presence.ABSENT) and not seen.leftovers:
                break
            time.sleep(_POLL_S)
    drop(cluster.folder(plan.key.job_id))
