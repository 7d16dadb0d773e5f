"""Show what would be launched for a spec, or was launched for a job. Stores, reserves and starts nothing."""

from __future__ import annotations

from orchestrator.commands.checks import Checks
from orchestrator.commands.comparison import compare
from orchestrator.commands.preview import render_launch, render_plan
from orchestrator.commands.sizing import compare_rungs
from orchestrator.commands.submission import find_cluster
from orchestrator.domain.access.identity import Principal
from orchestrator.domain.errors import FieldProblem, InvalidSpec
from orchestrator.domain.specs.spec import JobSpec
from orchestrator.ports.jobs import JobLookup
from orchestrator.wire.plans import MemoryView, PlanView
from trainer.contract.advice import Rung


class Plans:
    """A plan is refused if the submission would be."""

    def __init__(self, reader: JobLookup, checks: Checks) -> None:
        self._reader = reader
        self._checks = checks

    def acting(self, caller: Principal) -> Plans:
        """Return the plans for a caller. What the caller may not see counts as missing."""
        return Plans(self._reader, self._checks.acting(caller))

    def plan(self, spec: JobSpec, *, against: str | None = None) -> PlanView:
        """Return what a submission would start, compared with the job `against`. Raises InvalidSpec, NotFound."""
        stored = self._checks.accept(spec)
        cluster = find_cluster(stored, self._checks.clusters)
        plan = render_plan(stored, cluster)
        if against is None:
            return plan
        standing = self._reader.standing(against)
        if standing.job.spec.cluster != stored.cluster:
            where = (
                f"is {stored.cluster!r}, but {against} is on {standing.job.spec.cluster!r}: a job stays on its cluster"
            )
            raise InvalidSpec([FieldProblem("/cluster", where)])
        return plan.model_copy(update={"against": compare(stored, standing, cluster)})

    def compare_memory(self, spec: JobSpec) -> list[tuple[Rung, MemoryView]]:
        """Return the memory that the job would need of each device with each strategy. Raises InvalidSpec."""
        cluster = find_cluster(spec, self._checks.clusters)
        return compare_rungs(spec, gpus_per_node=cluster.gpus, gpu_type=cluster.gpu_type)

    def launch(self, job_id: str) -> PlanView:
        """Return the launch of the newest attempt, or of the first before it starts. Raises NotFound, InvalidSpec."""
        standing = self._reader.standing(job_id)
        cluster = find_cluster(standing.job.spec, self._checks.clusters)
        if standing.attempt is None:
            return render_plan(standing.job.spec, cluster)
        return render_launch(standing.job, standing.attempt, cluster)
