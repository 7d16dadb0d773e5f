"""Read an attempt's traces from the service's folder, and record there what the cluster shows."""

from __future__ import annotations

from pathlib import Path

from orchestrator import rundir
from orchestrator.backends.kubernetes.sight import Traces
from orchestrator.domain.job.attempt import AttemptKey
from orchestrator.jobfolder.folder import JobFolder
from trainer.contract import layout
from trainer.contract.exit_record import render_exit_record
from trainer.contract.pod import LastWords

_SUBMITTED, _BEGAN, _CANCELLED = "submitted-", "began", "cancelled"
_MOST_NAMES = 1000  # limit, since a job can create any number of files in its folder


def note_submission(job: JobFolder, attempt: int, uid: str) -> None:
    """Record that the attempt's Job was created. Raises OSError."""
    _note(job, attempt, f"{_SUBMITTED}{uid}")


def note_beginning(job: JobFolder, attempt: int) -> None:
    """Record that a pod of the attempt was seen running. Raises OSError."""
    _note(job, attempt, _BEGAN)


def note_cancellation(job: JobFolder, attempt: int) -> None:
    """Record for every service process that this service deletes the attempt's Job. Raises OSError."""
    _note(job, attempt, _CANCELLED)


def keep_last_words(job: JobFolder, attempt: int, words: LastWords) -> None:
    """Write a pod's exit record where an agent with a shared folder would write it. Idempotent. Raises OSError."""
    path = layout.replica_dir(Path(), attempt, words.replica) / str(words.incarnation) / layout.EXIT
    with job.make() as folder:
        if folder.status(path) is None:
            rundir.write_document(folder, path, render_exit_record(words.record))


def read_traces(job: JobFolder, key: AttemptKey, replicas: int) -> Traces:
    """List the attempt's folder and read the traces in it. Raises OSError."""
    with rundir.open_attempt(job, key.number) as attempt:
        names = attempt.names(limit=_MOST_NAMES + 8 * replicas)
        lives = list(rundir.incarnations(attempt, range(replicas))) if attempt.exists else []
        newest = {life.replica: life for life in lives}  # by replica: its incarnations come in their order
        return Traces(
            replicas=replicas,
            submitted=any(name.startswith(_SUBMITTED) for name in names),
            cancelled=attempt.status(Path(_CANCELLED)) is not None,
            began=bool(lives) or any(attempt.status(Path(name)) is not None for name in (_BEGAN, layout.CLAIM)),
            recorded=frozenset(number for number, life in newest.items() if life.exit() is not None),
        )


def _note(job: JobFolder, attempt: int, name: str) -> None:
    with job.make() as folder:
        folder.touch(layout.attempt_dir(Path(), attempt) / name)
