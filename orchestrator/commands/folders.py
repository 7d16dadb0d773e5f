"""Whose folders a spec names: another job's is written to by nobody, and read by those who may see that job."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from pathlib import Path

from orchestrator.clusters import Cluster
from orchestrator.domain.errors import FieldProblem
from orchestrator.domain.spec import JobSpec
from orchestrator.domain.workdir import name_jobs, why_not_in_root
from trainer.contract.location import is_url

ProjectOf = Callable[[str], str | None]  # of a job, deleted or not; None: there was none of this id
MaySee = Callable[[str], bool]  # a project's jobs


def find_foreign(
    spec: JobSpec, cluster: Cluster, project_of: ProjectOf, may_see: MaySee, *, known: JobSpec | None
) -> Iterator[FieldProblem]:
    """What the accepted spec, `known`, names already is not asked about again."""
    before = {} if known is None else _places(known)
    for pointer, place in _places(spec).items():
        if before.get(pointer) == place:
            continue
        for job_id, project in _jobs_of(place, cluster, project_of).items():
            if not may_see(project):
                yield FieldProblem(pointer, f"{place} cannot be used: there is no job {job_id}")
            elif pointer == "/snapshot/dir":
                yield FieldProblem(pointer, f"{place} is in the folder of job {job_id}: name one of no job")
    yield from _check_own_place(spec, cluster)


def _jobs_of(place: str, cluster: Cluster, project_of: ProjectOf) -> dict[str, str]:
    """The projects of the jobs in whose folders a place may be."""
    named = dict.fromkeys([*name_jobs(place), *name_jobs(_seen(place, cluster))])
    projects = ((job_id, project_of(job_id)) for job_id in named)
    return {job_id: project for job_id, project in projects if project is not None}


def _places(spec: JobSpec) -> dict[str, str]:
    """What a job reads or writes, by the field that names it."""
    run, config = spec.run, spec.trainer_config()
    named = {
        "/run/workdir": run.workdir,
        "/run/script": None if run.script is None else _join(run.workdir, run.script),
        "/run/trainer/data": None if config is None else _join(run.workdir, config.data),
        "/snapshot/dir": spec.snapshot.dir,
        "/snapshot/from": spec.snapshot.source,
    }
    return {pointer: place for pointer, place in named.items() if place is not None}


def _join(workdir: str, path: str) -> str:
    return os.path.normpath(Path(workdir, path))


def _seen(place: str, cluster: Cluster) -> str:
    """The same place with its links resolved, where the service sees what the nodes do."""
    return place if is_url(place) or not cluster.shares_files else str(Path(place).resolve())


def _check_own_place(spec: JobSpec, cluster: Cluster) -> Iterator[FieldProblem]:
    """Snapshots beside the jobs' own folders would be taken for one of them."""
    named = spec.snapshot.dir
    if named is None or is_url(named) or not Path(named).is_absolute():
        return
    roots = {cluster.job_root, cluster.node_root or cluster.job_root}
    for path in {Path(os.path.normpath(named)), Path(_seen(named, cluster))}:
        for root in roots:
            if path.is_relative_to(root) and why_not_in_root(path, root) is not None:
                yield FieldProblem(
                    "/snapshot/dir", f"{named} is in the run directory, among what belongs to the service"
                )
                return
