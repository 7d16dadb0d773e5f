"""Starts two workers as in a job: by the same plan, the same backend and so the same command.

So it finds what only shows when an agent starts, before a job does: a torch that the agent cannot run with, a port or a
name that it does not reach, a folder that it may not write. All that it leaves behind is what jobs share: the agent's
package in the run directory.
"""

from __future__ import annotations

import random
import secrets
import tempfile
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from pathlib import Path

from orchestrator import rundir
from orchestrator.configured_cluster import Cluster
from orchestrator.doctor.finding import Verdict, Word
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
_ABSENT_S = 15.0  # so long after a submission a cluster may not show it yet
_LOOK_S = 0.3
_LAST_WORDS_BYTES = 4096


@dataclass(frozen=True, slots=True, kw_only=True)
class Timeouts:
    """In seconds: until the cluster has started the agent, and from then until the workers have formed a group."""

    begin_s: float = 180.0
    meet_s: float = 120.0
    end_s: float = 30.0  # until nothing of it is left


def try_group(
    cluster: Cluster, site: Site, timeouts: Timeouts = Timeouts(), *, pause: Callable[[float], None] = time.sleep
) -> Word:
    """`site`: as in a job's plan. Blocks until the workers have formed a group, have failed, or had their time."""
    with tempfile.TemporaryDirectory() as workdir:
        plan = build_group_plan(cluster, site, workdir=workdir if cluster.shares_files else "/")
        began = time.monotonic()
        try:
            cluster.backend.submit(plan)
            return _judge(cluster, plan, timeouts, began, pause)
        except LaunchRefused as error:
            return CHECK, Verdict.FAILED, f"two workers could not be started: {error}"
        except (BackendUnavailable, OSError) as error:
            return CHECK, Verdict.FAILED, f"the test with two workers could not run: {error}"
        finally:
            _clear(cluster, plan, timeouts, pause)


def build_group_plan(cluster: Cluster, site: Site, *, workdir: str) -> LaunchPlan:
    """One node, two workers, no device: a job's plan in all but its size."""
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
        reason="is tried",
        desired=Desired(),
        created_at=now,
        updated_at=now,
    )
    attempt = Attempt(
        key=key,
        state=AttemptState.INTENDED,
        reason="is tried",
        nonce=secrets.token_hex(4),
        port=random.choice(cluster.ports),
        nodes="1",
        asked="1",
        created_at=now,
    )
    return build_plan(job, attempt, replace(site, report_url=None))


def _judge(
    cluster: Cluster, plan: LaunchPlan, timeouts: Timeouts, began: float, pause: Callable[[float], None]
) -> Word:
    deadline, runs = began + timeouts.begin_s, False
    while True:
        seen = cluster.backend.observe({plan.key: 1})[plan.key]
        record, now = _find_record(cluster, plan), time.monotonic()
        if record is not None:
            return _judge_record(record, _node_of(seen), now - began)
        if seen.presence is Presence.RUNNING and not runs:
            runs, deadline = True, now + timeouts.meet_s
        gone = seen.presence is Presence.GONE or (seen.presence is Presence.ABSENT and now - began > _ABSENT_S)
        if gone:
            why = seen.evidence if seen.cause is None else seen.cause.message
            return CHECK, Verdict.FAILED, f"two workers did not start: {why}{_last_words(cluster, plan)}"
        if now > deadline and not runs:
            waits = f"two workers were not started within {timeouts.begin_s:.0f} s: {seen.evidence}"
            return CHECK, Verdict.WARNING, f"{waits}; try again when there is room"
        if now > deadline:
            words = f"two workers formed no group within {timeouts.meet_s:.0f} s of their agent's start"
            return CHECK, Verdict.FAILED, f"{words}{_last_words(cluster, plan)}"
        pause(_LOOK_S)


def _judge_record(record: ExitRecord, node: str | None, seconds: float) -> Word:
    if record.outcome is Outcome.SUCCEEDED:
        where = "" if node is None else f" on {node}"
        return CHECK, Verdict.OK, f"two workers formed a group{where} after {seconds:.0f} s, started as in a job"
    why = record.outcome.value if record.failure is None else record.failure.message
    return CHECK, Verdict.FAILED, f"two workers, started as in a job, formed no group: {why}"


def _find_record(cluster: Cluster, plan: LaunchPlan) -> ExitRecord | None:
    with rundir.open_attempt(cluster.folder(plan.key.job_id), plan.key.number) as attempt:
        lives = list(rundir.incarnations(attempt, range(1))) if attempt.exists else []
        return lives[-1].exit() if lives else None


def _node_of(seen: Sighting) -> str | None:
    return next((one.node for one in seen.replicas if one.node is not None), None)


def _last_words(cluster: Cluster, plan: LaunchPlan) -> str:
    """What its agent, or what should have started it, printed last."""
    with suppress(OSError), rundir.open_attempt(cluster.folder(plan.key.job_id), plan.key.number) as attempt:
        lines = attempt.last_lines(Path(f"replica-0/{layout.AGENT_LOG}"), size=_LAST_WORDS_BYTES)
        return f"; its last words: {lines[-1][:300]}" if lines else ""
    return ""


def _clear(cluster: Cluster, plan: LaunchPlan, timeouts: Timeouts, pause: Callable[[float], None]) -> None:
    """End what is left; its folder goes last, when nobody writes into it any more."""
    deadline = time.monotonic() + timeouts.end_s
    with suppress(BackendUnavailable, LaunchRefused, OSError):
        cluster.backend.cancel(plan.key, force=True)
        while time.monotonic() < deadline:
            seen = cluster.backend.observe({plan.key: 1})[plan.key]
            if seen.presence in (Presence.GONE, Presence.ABSENT) and not seen.leftovers:
                break
            pause(_LOOK_S)
    drop(cluster.folder(plan.key.job_id))
