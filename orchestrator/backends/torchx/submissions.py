"""Which apps were submitted for which attempt: one file for each attempt, in a folder of the service.

A job may write to its own folder, and could name the app of another job there. So the files are elsewhere.
"""

from __future__ import annotations

import json
import os
import time
from collections.abc import Collection, Mapping
from contextlib import suppress
from pathlib import Path

from orchestrator.domain.job.attempt import AttemptKey

_KEPT_S = 86_400.0  # how long the file of an attempt that is not observed any more is kept
_SWEEP_S = 3600.0


class Submissions:
    """Methods raise OSError."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._swept_at = time.monotonic()

    def note(self, key: AttemptKey, claim: str, app: str | None) -> None:
        """Note a submission before it is made, with None, and again with the app's id."""
        self._folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        written = self._folder / f".{key}"
        with written.open("w") as file:
            json.dump({**self.read(key), claim: app}, file)
            file.flush()
            os.fsync(file.fileno())
        written.replace(self._path(key))

    def read(self, key: AttemptKey) -> Mapping[str, str | None]:
        """Return the app of each submission by its claim. None for one whose answer is not known."""
        try:
            found = json.loads(self._path(key).read_text())
        except (FileNotFoundError, ValueError):  # torn
            return {}
        return found if isinstance(found, dict) else {}

    def sweep(self, live: Collection[AttemptKey]) -> None:
        """Remove old files of attempts that are not live. Does so once an hour."""
        if time.monotonic() - self._swept_at < _SWEEP_S:
            return
        self._swept_at = time.monotonic()
        kept = {self._path(key).name for key in live}
        with suppress(FileNotFoundError), os.scandir(self._folder) as entries:
            for entry in entries:
                if entry.name not in kept and time.time() - entry.stat().st_mtime > _KEPT_S:
                    Path(entry.path).unlink(missing_ok=True)

    def _path(self, key: AttemptKey) -> Path:
        return self._folder / f"{key}.json"
