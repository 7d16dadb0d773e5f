"""Time limits that leave a job too little time to make a step. `plan` and `submit` refuse them or warn. Pure."""

from __future__ import annotations

from dataclasses import dataclass

from orchestrator.domain.errors import FieldProblem
from orchestrator.domain.specs.spec import JobSpec

_EARLY_S = 60.0  # sbatch(1), --signal: it may be sent up to 60 seconds earlier than specified
_START_S = 60.0  # usual time to the first step: imports, rendezvous, restore


@dataclass(frozen=True, slots=True, kw_only=True)
class Notice:
    """A cluster notifies its jobs `before_s` before their time limit, so that they can take a last snapshot."""

    before_s: float
    default_limit_s: float | None = None  # the limit of jobs that set none


def find_limit_problem(spec: JobSpec, notice: Notice | None) -> FieldProblem | None:
    """Return the problem of a limit that is no longer than the notice. Every attempt would have to end at its start."""
    if notice is None:
        return None
    limit_s = _read_limit(spec)
    if limit_s is None or limit_s > notice.before_s:
        return None
    message = (
        f"is {limit_s:g} s, but the cluster tells a job to end {notice.before_s:g} s before its limit, so no attempt "
        f"would make a step; use {_least(notice):g} s or more"
    )
    return FieldProblem("/placement/time_limit_s", message)


def list_limit_warnings(spec: JobSpec, notice: Notice | None) -> list[str]:
    """Warn if the limit of the job, or the cluster's default, leaves less time than a start takes."""
    if notice is None:
        return []
    limit_s = _read_limit(spec, notice.default_limit_s)
    if limit_s is None or limit_s >= _least(notice):
        return []
    return [
        f"placement.time_limit_s of {limit_s:g} s may end attempts before their first step: the notice comes "
        f"{notice.before_s:g} s before the limit, or up to {_EARLY_S:g} s earlier, and a start takes about "
        f"{_START_S:g} s; an attempt that keeps no step counts as a hang; use {_least(notice):g} s or more"
    ]


def _least(notice: Notice) -> float:
    return notice.before_s + _EARLY_S + _START_S


def _read_limit(spec: JobSpec, default_s: float | None = None) -> float | None:
    """Return the limit rounded up to minutes, as Slurm does. None if there is none or an option of sbatch sets it."""
    given_s = spec.placement.time_limit_s or default_s
    return None if given_s is None or "time" in spec.placement.options else -(-given_s // 60) * 60
