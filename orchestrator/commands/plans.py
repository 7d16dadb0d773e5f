"""What would be launched, or was: plans of specs and of jobs. Stores, reserves and starts nothing."""

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
    """A plan is refused where the submission would be."""

    def __init__(self, reader: JobLookup, checks: Checks) -> None:
        self._reader = reader
        self._checks = checks

    def acting(self, caller: Principal) -> Plans:
        """The same in a caller's name: what he may not see is not there."""
        return Plans(self._reader, self._checks.acting(caller))

    def plan(self, spec: JobSpec, *, against: str | None = None) -> PlanView:
        """What a submission would start, and would change of the job `against`. Raises InvalidSpec, NotFound."""
        stored = self._checks.accept(spec)
        cluster = find_cluster(stored, self._checks.clusters)
        plan = render_plan(stored, cluster)
        if against is None:
            return plan
        standing = self._reader.standing(against)
        if standing.job.spec.cluster != stored.cluster:
            where = (
                f"is {stored.cluster!r}, and {against} is on {standing.job.spec.cluster!r}: a job stays on its cluster"
            )
            raise InvalidSpec([FieldProblem("/cluster", where)])
        return plan.model_copy(update={"against": compare(stored, standing, cluster)})

    def compare_memory(self, spec: JobSpec) -> list[tuple[Rung, MemoryView]]:
        """What the job would take of each device on each rung of the ladder of strategies. Raises InvalidSpec."""
        cluster = find_cluster(spec, self._checks.clusters)
        return compare_rungs(spec, gpus_per_node=cluster.gpus, gpu_type=cluster.gpu_type)

    def launch(self, job_id: str) -> PlanView:
        """What was submitted for the job's newest attempt, or would be for its first. Raises NotFound, InvalidSpec."""
        standing = self._reader.standing(job_id)
        cluster = find_cluster(standing.job.spec, self._checks.clusters)
        if standing.attempt is None:
            return render_plan(standing.job.spec, cluster)
        return render_launch(standing.job, standing.attempt, cluster)
