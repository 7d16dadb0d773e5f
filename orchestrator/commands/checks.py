"""Check that a spec can be accepted, and that everything it names exists for the caller. Changes nothing."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from contextlib import suppress
from dataclasses import dataclass, replace

from orchestrator.commands.folders import check_folders
from orchestrator.commands.submission import check_submission, find_cluster, make_absolute
from orchestrator.configured_cluster import Cluster
from orchestrator.domain.access.identity import LOCAL, Principal, Role
from orchestrator.domain.access.url_policy import why_no_store, why_out_of_bounds
from orchestrator.domain.errors import FieldProblem, InvalidSpec, NotFound
from orchestrator.domain.job.job import Job
from orchestrator.domain.specs.spec import JobSpec
from orchestrator.ports.jobs import JobStore
from orchestrator.store.deletion_store import DeletionStore
from trainer.contract.location import is_url


def _no_secrets(_: str) -> Collection[str]:
    return ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Checks:
    """`secrets` returns the names of a project's secrets. What `caller` may not see counts as missing."""

    jobs: JobStore
    clusters: Mapping[str, Cluster]
    webhooks: Collection[str] = ()
    secrets: Callable[[str], Collection[str]] = _no_secrets
    private_hosts: Collection[str] = ()
    deleted: DeletionStore | None = None
    caller: Principal = LOCAL

    def acting(self, caller: Principal) -> Checks:
        """Return the same checks for another caller."""
        return replace(self, caller=caller)

    def accept(
        self, spec: JobSpec, job_id: str | None = None, *, prefix: str = "", known: JobSpec | None = None
    ) -> JobSpec:
        """Return the spec as it is stored. Raises InvalidSpec, whose pointers start with `prefix`.

        Names that the accepted spec `known` has are not checked again. A webhook may be gone by now, or a job may be
        hidden from this caller.
        """
        try:
            stored = make_absolute(spec)
            self._check_folders(stored, known)
            check_submission(stored, find_cluster(spec, self.clusters))
            self._check_dependencies(stored, job_id, () if known is None else known.after)
            self._check_webhooks(stored, () if known is None else known.notify)
            self._check_secrets(stored)
            self._check_reach(stored)
        except InvalidSpec as error:
            raise InvalidSpec([FieldProblem(prefix + p.pointer, p.message) for p in error.problems]) from error
        return stored

    def _check_folders(self, spec: JobSpec, known: JobSpec | None) -> None:
        cluster = find_cluster(spec, self.clusters)
        found = check_folders(
            spec, cluster, self._project_of, lambda project: self.caller.may(Role.VIEWER, project), known=known
        )
        problems = list(dict.fromkeys(found))
        if problems:
            raise InvalidSpec(problems)

    def _project_of(self, job_id: str) -> str | None:
        try:
            return self.jobs.get(job_id).spec.project
        except NotFound:
            deletion = None if self.deleted is None else self.deleted.deletion(job_id)
            return None if deletion is None else deletion.project

    def _check_dependencies(self, spec: JobSpec, job_id: str | None, known: Collection[str]) -> None:
        """Each job in `after` must exist for the caller and must not wait for this job, directly or indirectly."""
        problems = []
        for index, name in enumerate(spec.after):
            try:
                other = self.jobs.get(name)
                if name not in known and not self.caller.may(Role.VIEWER, other.spec.project):
                    raise NotFound(f"there is no job {name}")
                if self._waits_for(other, job_id):
                    problems.append(FieldProblem(f"/after/{index}", f"job {name} waits for this one"))
            except NotFound:
                problems.append(FieldProblem(f"/after/{index}", f"there is no job {name}"))
        if problems:
            raise InvalidSpec(problems)

    def _waits_for(self, job: Job, other: str | None) -> bool:
        """Whether `job` is `other` or waits for it. No job waits for a new one (None)."""
        ahead, seen = [job], {job.id}
        while ahead and other is not None:
            each = ahead.pop()
            if each.id == other:
                return True
            new = [name for name in each.spec.after if name not in seen]
            seen.update(new)
            for name in new:
                with suppress(NotFound):
                    ahead.append(self.jobs.get(name))
        return False

    def _check_webhooks(self, spec: JobSpec, kept: Collection[str]) -> None:
        there_are = f"known: {', '.join(sorted(self.webhooks))}" if self.webhooks else "none is configured"
        unknown = [
            FieldProblem(f"/notify/{index}", f"there is no webhook {name!r}; {there_are}")
            for index, name in enumerate(spec.notify)
            if name not in self.webhooks and name not in kept
        ]
        if unknown:
            raise InvalidSpec(unknown)

    def _check_secrets(self, spec: JobSpec) -> None:
        if not spec.run.secrets:
            return
        stored = self.secrets(spec.project)
        missing = [
            FieldProblem(f"/run/secrets/{index}", f"project {spec.project} has no secret {name!r}; an admin stores it")
            for index, name in enumerate(spec.run.secrets)
            if name not in stored
        ]
        if missing:
            raise InvalidSpec(missing)

    def _check_reach(self, spec: JobSpec) -> None:
        places = {"/snapshot/dir": spec.snapshot.dir, "/snapshot/from": spec.snapshot.source}
        refused = [
            FieldProblem(pointer, f"{place} {reason}")
            for pointer, place in places.items()
            if place is not None and is_url(place)
            if (
                reason := why_no_store(place, reads=pointer == "/snapshot/from")
                or why_out_of_bounds(place, self.private_hosts)
            )
        ]
        if refused:
            raise InvalidSpec(refused)
