"""Say when the workers of a running attempt without reports last printed, and whether a hang is noticed. Pure."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime

from orchestrator.domain.accounting.chronicle import Chronicle
from orchestrator.domain.counted import lasting
from orchestrator.domain.job.attempt import Attempt, AttemptState
from orchestrator.domain.job.job import JobState
from orchestrator.domain.specs.spec import JobSpec
from trainer.contract.silence import STILL_S

_TRAINER = "The trainer has reported no step yet."
# torch/distributed/constants.py (2.13): default_pg_timeout and default_pg_nccl_timeout.
_UNWATCHED = (
    "Launcher torchrun does not watch for hangs; torch's own timeouts end a collective after 30 min (gloo) or "
    "10 min (NCCL)."
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Output:
    """When the workers of a generation last printed. `at` is None if they have printed nothing."""

    at: datetime | None
    worker: str = ""  # such as "rank 0"
    started_at: datetime | None = None  # of workers that have printed nothing


def find_quiet(chronicle: Chronicle) -> Attempt | None:
    """Return the running attempt, if none of its workers has ever reported anything."""
    newest = chronicle.attempts[-1] if chronicle.attempts else None
    if newest is None or chronicle.job.state is not JobState.RUNNING or newest.state is not AttemptState.RUNNING:
        return None
    return None if newest.key.number in chronicle.reported else newest


def tell_quiet(spec: JobSpec, attempt: Attempt, output: Output | None, now: datetime) -> str:
    """Write three sentences for the owner. `output` is None if it is not known."""
    return f"{_tell_subject(spec)} {_tell_output(attempt, output, now)} {_tell_watch(spec)}"


def _tell_subject(spec: JobSpec) -> str:
    if spec.run.trainer is not None:
        return _TRAINER
    kind = next(name for name in ("script", "module", "command") if getattr(spec.run, name) is not None)
    return f"The {kind} reports no steps."


def _tell_output(attempt: Attempt, output: Output | None, now: datetime) -> str:
    if output is None:
        return "It is not known when it last printed."
    if output.at is None:
        if output.started_at is None:
            return f"It has printed nothing since it started {_age(attempt.started_at or attempt.created_at, now)} ago."
        return f"It has printed nothing since its workers started {_age(output.started_at, now)} ago."
    return f"Its last output was {_age(output.at, now)} ago ({output.worker})."


def _tell_watch(spec: JobSpec) -> str:
    if spec.launcher == "torchrun":
        return _UNWATCHED
    wanted = spec.supervise.heartbeat_timeout_s
    limit_s = STILL_S if wanted == "auto" else wanted
    waits = " while one waits for another or for data" if wanted == "auto" else ""
    words = f"{limit_s / 60:g} min" if limit_s >= 120 and limit_s % 60 == 0 else f"{limit_s:g} s"
    return f"A hang is noticed once no worker prints, computes or reads for {words}{waits}."


def _age(since: datetime, now: datetime) -> str:
    return lasting((now - since).total_seconds())
