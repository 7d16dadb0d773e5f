"""A folder that no job owns, with a check that nothing in it was read or changed."""

from __future__ import annotations

import os
from pathlib import Path

CANARY = "CANARY-7f3a"  # in every file, so an answer that contains it has read one


class Outside:
    """Files and folders like those of a service."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        (folder / "1" / "replica-0" / "1").mkdir(parents=True)
        for name in ("precious", "claim", "1/replica-0/1/agent.json", "1/replica-0/1/progress.jsonl"):
            (folder / name).write_text(f'{{"text": "{CANARY}"}}\n')
        (folder / "linked").write_text("a job may give this file a second name in its own folder\n")
        self._before = self._look()

    def require_untouched(self) -> None:
        now = self._look()
        changed = {name: (self._before.get(name), now.get(name)) for name in self._before.keys() | now.keys()}
        touched = {name: both for name, both in changed.items() if both[0] != both[1]}
        assert not touched, touched

    def _look(self) -> dict[str, tuple[object, ...]]:
        found = {}
        for here, folders, files in os.walk(self.folder):
            for name in (*folders, *files, "."):
                path = Path(here, name)
                status = path.lstat()
                content = path.read_bytes() if path.is_file() else b""
                found[str(path)] = (status.st_mode, status.st_ino, status.st_mtime_ns, content)
        return found
