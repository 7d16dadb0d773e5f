"""Check a spec against its cluster before it is accepted, so that what would fail at the start is refused now.

Reads the file system. Writes to it only to find out whether a snapshot directory can be written.
"""

from __future__ import annotations

import os
import stat
import tempfile
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path

from orchestrator.commands.drafts import draft_attempt, draft_job
from orchestrator.commands.tasks import why_no_task
from orchestrator.configured_cluster import Cluster
from orchestrator.domain.counted import counted
from orchestrator.domain.errors import BackendUnavailable, FieldProblem, InvalidSpec, LaunchRefused
from orchestrator.domain.specs.spec import JobSpec
from orchestrator.domain.specs.time_limit import find_limit_problem
from orchestrator.domain.specs.unsupported import find_unsupported
from trainer.contract import layout
from trainer.contract.location import is_url, why_no_place

_MAX_LOOKED_AT = 10_000  # entries of a data folder, to find one that is not empty


def find_cluster(spec: JobSpec, clusters: Mapping[str, Cluster]) -> Cluster:
    """Raises InvalidSpec."""
    if spec.cluster in clusters:
        return clusters[spec.cluster]
    known = ", ".join(sorted(clusters)) or "none"
    raise InvalidSpec([FieldProblem("/cluster", f"there is no cluster {spec.cluster!r}; known: {known}")])


def make_absolute(spec: JobSpec) -> JobSpec:
    """Return the spec as it is stored: a relative workdir is relative to the service's working directory."""
    workdir = str(Path(spec.run.workdir).absolute())
    return spec.model_copy(update={"run": spec.run.model_copy(update={"workdir": workdir})})


def check_submission(spec: JobSpec, cluster: Cluster) -> None:
    """Check all that can be known before the start. `spec` must have an absolute workdir. Raises InvalidSpec."""
    problems = find_unsupported(spec, cluster.kind)
    for check in (*_CHECKS, *_list_disk_checks(spec, cluster)):
        problems.extend(check(spec, cluster))
    if not problems:
        problems.extend(_check_request(spec, cluster))
    if problems:
        raise InvalidSpec(problems)


def _check_request(spec: JobSpec, cluster: Cluster) -> Iterator[FieldProblem]:
    """Check an overlay and the scheduler's own options by rendering them."""
    field = next((name for name in ("overlay", "options") if getattr(spec.placement, name)), None)
    if field is None:
        return
    job = draft_job(spec)
    try:
        cluster.backend.render(cluster.plan(job, draft_attempt(job, cluster)))
    except LaunchRefused as error:
        yield FieldProblem(f"/placement/{field}", str(error).removeprefix("placement.overlay: "))


def _check_workdir(spec: JobSpec, cluster: Cluster) -> Iterator[FieldProblem]:
    reason = _why_no_workdir(spec, cluster)
    if reason is not None:
        yield FieldProblem("/run/workdir", f"{spec.run.workdir} {reason}")
        return
    found = _describe_path(Path(spec.run.workdir))
    if found != "a directory":
        yield FieldProblem("/run/workdir", f"{spec.run.workdir} is {found}, must be a directory on the service's host")


def _check_script(spec: JobSpec, _: Cluster) -> Iterator[FieldProblem]:
    if spec.run.script is None:
        return
    script = Path(spec.run.workdir, spec.run.script)
    found = _describe_path(script)
    if found != "a file":
        yield FieldProblem("/run/script", f"{script} is {found}, must be a file")


def _check_data(spec: JobSpec, _: Cluster) -> Iterator[FieldProblem]:
    config = spec.trainer_config()
    if config is None or config.data == "stdlib":
        return
    data = Path(spec.run.workdir, config.data)
    found = _describe_path(data)
    if found not in ("a file", "a directory"):
        yield FieldProblem("/run/trainer/data", f"{data} is {found}, must be a file, a folder or 'stdlib'")
    elif not _holds_data(data):
        yield FieldProblem("/run/trainer/data", f"{data} is empty: there is nothing to train on")


def _check_task(spec: JobSpec, cluster: Cluster) -> Iterator[FieldProblem]:
    """Check it only on this machine, whose Python and installed modules the job has."""
    config = spec.trainer_config()
    if config is None or config.task is None or cluster.kind != "local":
        return
    reason = why_no_task(spec, config.task)
    if reason is not None:
        yield FieldProblem("/run/trainer/task", f"{config.task!r}: {reason}")


def _check_demand(spec: JobSpec, cluster: Cluster) -> Iterator[FieldProblem]:
    if spec.resources.gpus > cluster.gpus:
        yield FieldProblem(
            "/resources/gpus", f"needs {counted(spec.resources.gpus, 'GPU')}, cluster {cluster.name} has {cluster.gpus}"
        )
    if spec.topology.workers_per_node == "gpu" and cluster.gpus == 0:
        if not spec.resources.gpus:  # otherwise /resources/gpus is already refused
            message = f"is 'gpu', but cluster {cluster.name} has no GPU; give a number of workers"
            yield FieldProblem("/topology/workers_per_node", message)
        return
    needed = spec.topology.min_nodes * spec.topology.count_workers(cluster.gpus)
    try:
        slots = cluster.backend.slots()
    except BackendUnavailable:
        return  # the job waits until the cluster answers
    if slots is not None and needed > slots:
        yield FieldProblem(
            "/topology", f"needs {counted(needed, 'worker')}, cluster {cluster.name} has {counted(slots, 'slot')}"
        )


def _check_time_limit(spec: JobSpec, cluster: Cluster) -> Iterator[FieldProblem]:
    problem = find_limit_problem(spec, cluster.notice)
    if problem is not None:
        yield problem


def _check_image(spec: JobSpec, cluster: Cluster) -> Iterator[FieldProblem]:
    if spec.run.image is not None and not cluster.images:
        yield FieldProblem("/run/image", f"cluster {cluster.name} does not support images; remove it")


def _check_snapshot_dir(spec: JobSpec, _: Cluster) -> Iterator[FieldProblem]:
    if spec.snapshot.dir is None:
        return
    target = Path(spec.snapshot.dir)
    if is_url(spec.snapshot.dir) or not target.is_absolute():
        return  # only the job has the credentials of a store
    reason = _why_not_writable(target)
    if reason is not None:
        yield FieldProblem("/snapshot/dir", f"{target} cannot be written: {reason}")


def _check_snapshot_source(spec: JobSpec, _: Cluster) -> Iterator[FieldProblem]:
    if spec.snapshot.source is None:
        return
    source = Path(spec.snapshot.source)
    if is_url(spec.snapshot.source) or not source.is_absolute():
        return
    if _describe_path(source / layout.MANIFEST) != "a file":
        message = f"{source} has no {layout.MANIFEST}: it is not a committed snapshot"
        yield FieldProblem("/snapshot/from", message)


def _check_places(spec: JobSpec, _: Cluster) -> Iterator[FieldProblem]:
    """Check only the texts, on every cluster: `file:` and `local:` are not paths."""
    for field, place in (("/snapshot/dir", spec.snapshot.dir), ("/snapshot/from", spec.snapshot.source)):
        reason = None if place is None else _why_no_place(place)
        if reason is not None:
            yield FieldProblem(field, reason)


def _why_no_place(place: str) -> str | None:
    if not is_url(place):
        return None if Path(place).is_absolute() else f"is {place!r}, must be an absolute path or a URL"
    reason = why_no_place(place)
    return None if reason is None else f"{place} {reason}"


_Check = Callable[[JobSpec, Cluster], Iterator[FieldProblem]]
_CHECKS: tuple[_Check, ...] = (_check_demand, _check_time_limit, _check_image, _check_places)
# These look up paths, so they run only if the cluster shares files with the service.
_OUTSIDE_WORKDIR: tuple[_Check, ...] = (_check_snapshot_dir, _check_snapshot_source)
_ON_DISK: tuple[_Check, ...] = (_check_workdir, _check_script, _check_data, _check_task, *_OUTSIDE_WORKDIR)


def _list_disk_checks(spec: JobSpec, cluster: Cluster) -> tuple[_Check, ...]:
    """If the workdir is refused, check nothing in it: that would reveal its content."""
    if not cluster.shares_files:
        return ()
    return _ON_DISK if _why_no_workdir(spec, cluster) is None else (_check_workdir, *_OUTSIDE_WORKDIR)


def _why_no_workdir(spec: JobSpec, cluster: Cluster) -> str | None:
    return None if cluster.why_no_workdir is None else cluster.why_no_workdir(Path(spec.run.workdir))


def _describe_path(path: Path) -> str:
    try:
        mode = path.stat().st_mode
    except (FileNotFoundError, NotADirectoryError):
        return "missing"
    except OSError as error:
        return f"unreadable ({error.strerror})"
    if stat.S_ISDIR(mode):
        return "a directory"
    return "a file" if stat.S_ISREG(mode) else "neither a file nor a directory"


def _holds_data(path: Path) -> bool:
    if path.is_file():
        return path.stat().st_size > 0
    looked_at = 0
    for folder, _, names in os.walk(path):
        for name in names:
            looked_at += 1
            if looked_at > _MAX_LOOKED_AT or _size(Path(folder, name)) > 0:
                return True
    return False


def _size(path: Path) -> int:
    try:
        return path.stat().st_size
    except OSError:
        return 0


def _why_not_writable(target: Path) -> str | None:
    """Try to write in the nearest existing folder above; leaves nothing behind."""
    for folder in (target, *target.parents):
        found = _describe_path(folder)
        if found == "missing":
            continue
        if found != "a directory":
            return f"{folder} is {found}"
        try:
            with tempfile.TemporaryDirectory(prefix=".orchestrator-", dir=folder):
                return None
        except OSError as error:
            return f"{folder}: {error.strerror}"
    return "no folder above it exists"
