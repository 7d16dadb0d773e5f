"""Jobs and attempts that are never started, to render a dry run or to check a submission."""

from __future__ import annotations

from datetime import UTC, datetime

from orchestrator.configured_cluster import Cluster
from orchestrator.domain.job.attempt import Attempt, AttemptKey, AttemptState
from orchestrator.domain.job.job import Desired, Job, JobState
from orchestrator.domain.specs.spec import JobSpec

NONCE = "preview"
_REASON = "is a dry run"
_NEVER = datetime.fromtimestamp(0, UTC)


def draft_job(spec: JobSpec) -> Job:
    return Job(
        id=f"{spec.name}-{NONCE}",
        spec=spec,
        state=JobState.QUEUED,
        reason=_REASON,
        desired=Desired(),
        created_at=_NEVER,
        updated_at=_NEVER,
    )


def draft_attempt(job: Job, cluster: Cluster, *, like: Attempt | None = None) -> Attempt:
    """Return the job's first attempt, or one with the number, port and nodes of `like`."""
    topology = job.spec.topology
    return Attempt(
        key=AttemptKey(job.id, 1 if like is None else like.key.number),
        state=AttemptState.INTENDED,
        reason=_REASON,
        nonce=NONCE if like is None else like.nonce,
        nodes=topology.nodes,
        asked=topology.nodes,
        port=cluster.ports.start if like is None else like.port,
        restore_from=None if like is None else like.restore_from,
        excluded_nodes=() if like is None else like.excluded_nodes,
        created_at=_NEVER,
    )
