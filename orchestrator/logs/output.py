"""Find when an attempt's workers last printed, from the times of their log files. No log is opened.

The job can create any name in the folder, so the number of replicas comes from the launch, and links are not followed.
"""

from __future__ import annotations

import stat
from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path

from orchestrator.domain.explanation.quiet import Output
from orchestrator.jobfolder.folder import MAX_ENTRIES, Folder, JobFolder
from orchestrator.logs.log_files import numbered, older_of
from trainer.contract import layout

MOST_LOOKED_AT = 1024  # workers, from the first replicas on, since the first ranks usually print
_ALL_ENTRIES = 200_000  # all folders together
_FEWEST_ENTRIES = 1000  # per folder, however many folders there are
_LONG_AGO = datetime.min.replace(tzinfo=UTC)


def find_last_output(job: JobFolder, attempt: int, replicas: int) -> Output | None:
    """Return the last output of the replicas' newest generations. None if there is no log. Raises OSError."""
    with job.open() as folder:
        outputs = [_read_output(folder, *each) for each in _workers(folder, attempt, replicas)]
    return max(outputs, key=_recency, default=None)


def _recency(output: Output) -> tuple[bool, datetime]:
    return output.at is not None, output.at or output.started_at or _LONG_AGO


def _workers(folder: Folder, attempt: int, replicas: int) -> Iterator[tuple[Path, str]]:
    """Yield the log and the name of each worker."""
    left = MOST_LOOKED_AT
    limit = min(MAX_ENTRIES, max(_FEWEST_ENTRIES, _ALL_ENTRIES // max(1, replicas)))
    for replica in range(min(replicas, MOST_LOOKED_AT)):
        path = layout.replica_dir(Path(), attempt, replica)
        for prefix in ("", "g"):  # the newest incarnation, and in it the newest generation
            path = next((below for _, below in numbered(folder, path, prefix, limit=limit)[-1:]), path / "none")
        for local_rank, place in numbered(folder, path, "local-", limit=limit)[:left]:
            left -= 1
            # With several replicas, the local rank is not the rank.
            worker = f"rank {local_rank}" if replicas == 1 else f"replica {replica}, local rank {local_rank}"
            yield place / layout.WORKER_LOG, worker


def _read_output(folder: Folder, log: Path, worker: str) -> Output:
    """Read the times of a log and its older part. A log that is new or was just rotated is empty."""
    at = started_at = None
    for each in (older_of(log), log):
        status = folder.status(each)
        if status is None or not stat.S_ISREG(status.st_mode):
            continue
        moment = read_moment(status.st_mtime)
        if status.st_size:
            at = max(filter(None, (at, moment)), default=None)
        else:
            started_at = moment
    return Output(at=None, started_at=started_at) if at is None else Output(at=at, worker=worker)


def read_moment(seconds: float) -> datetime | None:
    """Convert a file's time, which may be any number. None if datetime cannot represent it."""
    try:
        return datetime.fromtimestamp(seconds, UTC)
    except (ValueError, OverflowError, OSError):
        return None
