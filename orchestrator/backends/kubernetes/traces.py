"""What the service's folder of an attempt shows of it, and what the cluster's words add to it."""

from __future__ import annotations

import os
from contextlib import suppress
from pathlib import Path

from orchestrator import rundir
from orchestrator.backends.kubernetes.sight import Traces
from orchestrator.domain.attempt import AttemptKey
from trainer.contract import layout
from trainer.contract.exit_record import render_exit_record
from trainer.contract.pod import LastWords

_SUBMITTED, _BEGAN = "submitted-", "began"


def note_submission(attempt_dir: Path, uid: str) -> None:
    """Remember that there was a Job of the attempt. Raises OSError."""
    attempt_dir.mkdir(parents=True, exist_ok=True)
    (attempt_dir / f"{_SUBMITTED}{uid}").touch()


def note_beginning(attempt_dir: Path) -> None:
    """Remember that a pod of the attempt was seen at work. Raises OSError."""
    attempt_dir.mkdir(parents=True, exist_ok=True)
    (attempt_dir / _BEGAN).touch()


def keep_last_words(job_dir: Path, attempt: int, words: LastWords) -> None:
    """Put a pod's exit record where an agent that shares this folder would have put it. Idempotent. Raises OSError."""
    folder = layout.replica_dir(job_dir, attempt, words.replica) / str(words.incarnation)
    if not (folder / layout.EXIT).exists():
        rundir.write_document(folder / layout.EXIT, render_exit_record(words.record))


def read_traces(job_dir: Path, key: AttemptKey) -> Traces:
    """Raises OSError."""
    names: set[str] = set()
    with suppress(FileNotFoundError):
        names = set(os.listdir(layout.attempt_dir(job_dir, key.number)))  # noqa: PTH208  # names alone
    lives = list(rundir.incarnations(job_dir, key.number)) if any(n.startswith("replica-") for n in names) else []
    return Traces(
        replicas=rundir.read_replicas(job_dir, key.number) or 1,
        submitted=any(name.startswith(_SUBMITTED) for name in names),
        began=_BEGAN in names or layout.CLAIM in names or bool(lives),
        recorded=frozenset(life.replica for life in lives if life.exit() is not None),
    )
