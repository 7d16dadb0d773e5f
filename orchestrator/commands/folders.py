"""Check the paths of a spec that are in folders of jobs, some of which the caller may not see."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from pathlib import Path

from orchestrator.configured_cluster import Cluster
from orchestrator.domain.errors import FieldProblem
from orchestrator.domain.specs.spec import JobSpec
from orchestrator.domain.specs.workdir import find_job_ids, why_not_in_root
from trainer.contract.location import is_url

ProjectOf = Callable[[str], str | None]  # returns the project of a job, even of a deleted one, by the job's id
MaySee = Callable[[str], bool]  # returns whether the caller may see the jobs of a project


def check_folders(
    spec: JobSpec, cluster: Cluster, project_of: ProjectOf, may_see: MaySee, *, known: JobSpec | None
) -> Iterator[FieldProblem]:
    """Yield a problem for each path that the caller may not name.

    Paths of the accepted spec `known` are not checked again.
    """
    before = {} if known is None else _places(known)
    for pointer, place in _places(spec).items():
        if before.get(pointer) == place:
            continue
        for job_id, project in _jobs_of(place, cluster, project_of).items():
            if not may_see(project):
                yield FieldProblem(pointer, f"{place} cannot be used: there is no job {job_id}")
            elif pointer == "/snapshot/dir":
                yield FieldProblem(pointer, f"{place} is in the folder of job {job_id}: choose another folder")
    yield from _check_own_place(spec, cluster)


def _jobs_of(place: str, cluster: Cluster, project_of: ProjectOf) -> dict[str, str]:
    """Return the jobs in whose folders a place may be, with their projects."""
    named = dict.fromkeys([*find_job_ids(place), *find_job_ids(_resolved(place, cluster))])
    projects = ((job_id, project_of(job_id)) for job_id in named)
    return {job_id: project for job_id, project in projects if project is not None}


def _places(spec: JobSpec) -> dict[str, str]:
    """Return the paths and URLs that a job reads or writes, by the field that names them."""
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


def _resolved(place: str, cluster: Cluster) -> str:
    """Return the place with its links resolved, if the service sees the same files as the nodes."""
    return place if is_url(place) or not cluster.shares_files else str(Path(place).resolve())


def _check_own_place(spec: JobSpec, cluster: Cluster) -> Iterator[FieldProblem]:
    """Refuse a snapshot folder beside the jobs' folders, which would count as a job's folder."""
    named = spec.snapshot.dir
    if named is None or is_url(named) or not Path(named).is_absolute():
        return
    roots = {cluster.job_root, cluster.node_root or cluster.job_root}
    for path in {Path(os.path.normpath(named)), Path(_resolved(named, cluster))}:
        for root in roots:
            reason = why_not_in_root(path, root) if path.is_relative_to(root) else None
            if reason is not None:
                yield FieldProblem("/snapshot/dir", f"{named} {reason}")
                return
