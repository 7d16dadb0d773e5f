"""Removing what a job has left: never anything outside it, however deep or wide, and from wherever it was cut off."""

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

GOING = ".deleted-"  # before a folder's name, from the moment at which it is to go
_AT_ONCE = 1000  # names in memory

GoOn = Callable[[], bool]


@dataclass(frozen=True, slots=True)
class JobFolders:
    """The folders of a cluster's jobs, on a file system that the service mounts."""

    root: Path

    def remove(self, job_id: str, snapshot_dir: str | None, go_on: GoOn) -> bool:
        """Remove a deleted job's folder, and the one that it had in `snapshot_dir`, for as long as `go_on` says so;
        whether all is gone. Raises OSError. Idempotent; what was cut off is gone on with by the next call."""
        parents = [self.root]
        if snapshot_dir is not None and not is_url(snapshot_dir):
            parents.append(Path(snapshot_dir))
        return all(remove_folder(parent, job_id, go_on) for parent in parents)


def remove_folder(path: Path, name: str, go_on: GoOn) -> bool:
    """Remove what has this name in a folder, with all that is in it, until `go_on` says no; whether it is gone.

    It gets another name first, so that nobody finds half of it. Raises OSError.
    """
    going = f"{GOING}{require_name(name)}"
    with Folder.of(path) as parent:
        if not parent.exists:
            return True
        if not remove(parent, going, go_on):  # what an earlier call has left
            return False
        parent.hand_over(Path(name), parent, going)
        return remove(parent, going, go_on)


def drop(job: JobFolder) -> None:
    """Remove a folder of the service's own as well as it can be."""
    with suppress(OSError):
        remove_folder(job.root, job.name, lambda: True)


def remove(parent: Folder, name: str, go_on: GoOn) -> bool:
    """The same at once, under its own name. Raises OSError.

    Folders below it are moved up to it before they are emptied, so that their depth costs nothing.
    """
    if _unlink(parent, name):
        return True
    with parent.within(Path(name)) as top:
        while names := top.names(limit=_AT_ONCE):
            for each in names:
                if not go_on() or not (_unlink(top, each) or _lift(top, each, go_on)):
                    return False
    with suppress(FileNotFoundError):
        os.rmdir(name, dir_fd=parent.fileno())
    return True


def _lift(top: Folder, name: str, go_on: GoOn) -> bool:
    """Empty a folder in `top`: files go, folders move up."""
    with top.within(Path(name)) as folder:
        while names := folder.names(limit=_AT_ONCE):
            for each in names:
                if not go_on():
                    return False
                if not _unlink(folder, each) and not _remove_empty(folder, each):
                    folder.hand_over(Path(each), top, secrets.token_hex(16))
    try:
        os.rmdir(name, dir_fd=top.fileno())
    except OSError as error:
        if error.errno != errno.ENOTEMPTY:
            raise
        return False  # somebody still writes there: a later call goes on
    return True


def _unlink(folder: Folder, name: str) -> bool:
    """False for a folder."""
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
