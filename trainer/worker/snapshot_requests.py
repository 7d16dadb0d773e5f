"""Snapshots that the service requests: `snapshot` in the attempt's desired.json counts them and only rises.

Only rank 0 reads the file. The other ranks get the decision in the step's all-reduce, as for any due snapshot.
"""

from __future__ import annotations

import json
from pathlib import Path

from trainer.contract import layout
from trainer.contract.env import WorkerPlace
from trainer.contract.launch import DesiredDocument, newest, parse_desired

_LOOK_EVERY_S = 0.5


class SnapshotRequests:
    """Times are seconds of one monotonic clock. Outside a job `path` is None, and nothing is requested."""

    def __init__(self, path: Path | None, *, answered: int) -> None:
        self.answered = answered  # the number of requests that have a snapshot
        self._path = path
        self._looked_at = float("-inf")
        self._seen: tuple[int, int, int] | None = None
        self._desired = DesiredDocument()

    def is_due(self, now: float) -> bool:
        """Whether a request has no snapshot yet. Looks at most twice a second; reads a changed file."""
        if self._path is not None and now - self._looked_at >= _LOOK_EVERY_S:
            self._looked_at = now
            self._look(self._path)
        return self._desired.snapshot > self.answered

    def answer(self) -> int:
        """Mark all known requests as answered by the snapshot that begins, even if it fails. Returns their number."""
        self.answered = max(self.answered, self._desired.snapshot)
        return self.answered

    def _look(self, path: Path) -> None:
        try:
            status = path.stat()
            identity = status.st_ino, status.st_mtime_ns, status.st_size
            if identity == self._seen:
                return
            document = json.loads(path.read_bytes())
        except (OSError, ValueError, RecursionError):
            return
        self._seen = identity
        if isinstance(document, dict):
            self._desired = newest(self._desired, parse_desired(document))


def desired_of(place: WorkerPlace) -> Path | None:
    if place.job_dir is None:
        return None
    return layout.attempt_dir(Path(place.job_dir), place.attempt) / layout.DESIRED
