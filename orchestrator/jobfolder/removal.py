"""Remove a job's folder of any depth and size, and nothing outside it. An interrupted removal can continue."""

from __future__ import annotations

import errno
import os
import secrets
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from orchestrator.jobfolder.folder import Folder, JobFolder, require_name
from trainer.contract.location import is_url

GOING = ".deleted-"  # the prefix of a folder that is being removed
_AT_ONCE = 1000  # names in memory

MayContinue = Callable[[], bool]


@dataclass(frozen=True, slots=True)
class JobFolders:
    """The folders of a cluster's jobs, on a file system that the service mounts."""

    root: Path

    def remove(self, job_id: str, snapshot_dir: str | None, may_continue: MayContinue) -> bool:
        """Remove a deleted job's folder, and its folder in `snapshot_dir`, while `may_continue` returns True.

        Returns whether all is gone. The next call continues an interrupted removal. Idempotent. Raises OSError.
        """
        parents = [self.root]
        if snapshot_dir is not None and not is_url(snapshot_dir):
            parents.append(Path(snapshot_dir))
        return all(remove_folder(parent, job_id, may_continue) for parent in parents)


def remove_folder(path: Path, name: str, may_continue: MayContinue) -> bool:
    """Remove an entry of a folder with all its content, while `may_continue` returns True. Returns whether it is gone.

    The entry is renamed first, so that nobody sees a half-removed one. Raises OSError.
    """
    going = f"{GOING}{require_name(name)}"
    with Folder.of(path) as parent:
        if not parent.exists:
            return True
        if not remove(parent, going, may_continue):  # left by an earlier call
            return False
        parent.move_to(Path(name), parent, going)
        return remove(parent, going, may_continue)


def drop(job: JobFolder) -> None:
    """Remove one of the service's own folders. Ignores errors."""
    with suppress(OSError):
        remove_folder(job.root, job.name, lambda: True)


def remove(parent: Folder, name: str, may_continue: MayContinue) -> bool:
    """Remove an entry as remove_folder does, but without renaming it first. Raises OSError.

    Nested folders are moved up to it before they are emptied, so that depth costs nothing.
    """
    if _unlink(parent, name):
        return True
    with parent.within(Path(name)) as top:
        while names := top.names(limit=_AT_ONCE):
            for each in names:
                if not may_continue() or not (_unlink(top, each) or _lift(top, each, may_continue)):
                    return False
    with suppress(FileNotFoundError):
        os.rmdir(name, dir_fd=parent.fileno())
    return True


def _lift(top: Folder, name: str, may_continue: MayContinue) -> bool:
    """Empty and remove a folder in `top`: delete its files and move its folders up."""
    with top.within(Path(name)) as folder:
        while names := folder.names(limit=_AT_ONCE):
            for each in names:
                if not may_continue():
                    return False
                if not _unlink(folder, each) and not _remove_empty(folder, each):
                    folder.move_to(Path(each), top, secrets.token_hex(16))
    try:
        os.rmdir(name, dir_fd=top.fileno())
    except OSError as error:
        if error.errno != errno.ENOTEMPTY:
            raise
        return False  # a process still writes there; a later call continues
    return True


def _unlink(folder: Folder, name: str) -> bool:
    """Delete a file. Returns False for a folder."""
    try:
        os.unlink(name, dir_fd=folder.fileno())
    except FileNotFoundError:
        return True
    except IsADirectoryError:
        return False
    return True


def _remove_empty(folder: Folder, name: str) -> bool:
    with suppress(OSError):
        os.rmdir(name, dir_fd=folder.fileno())
        return True
    return False
