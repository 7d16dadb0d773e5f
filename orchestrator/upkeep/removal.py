"""Removing a job's folder: never anything outside it, a part at a time, and from wherever it was cut off."""

from __future__ import annotations

import errno
import os
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from trainer.contract.location import is_url

_GOING = ".deleted-"  # before a folder's name, from the moment at which it is to go


@dataclass(frozen=True, slots=True)
class LocalJobFolders:
    """Implements ports.JobFolders on a file system that the service mounts."""

    root: Path

    def remove(self, job_id: str, snapshot_dir: str | None, go_on: Callable[[], bool]) -> bool:
        parents = [self.root]
        if snapshot_dir is not None and not is_url(snapshot_dir):
            parents.append(Path(snapshot_dir))
        return all(remove_folder(parent, job_id, go_on) for parent in parents)


def remove_folder(parent: Path, name: str, go_on: Callable[[], bool]) -> bool:
    """Remove `parent/name` with all that is in it, until `go_on` says no; whether it is gone. Raises OSError.

    It gets another name first, so that nobody finds half of it. No link is followed: what one leads to stays, and it
    goes itself, also where the folder is one.
    """
    if not name or name != os.path.basename(name) or name in (".", ".."):  # noqa: PTH119  # a name, not a path
        raise OSError(errno.EINVAL, "is no name of a folder", name)
    try:
        within = os.open(parent, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    except FileNotFoundError:
        return True
    try:
        going = f"{_GOING}{name}"
        if not _remove(within, going, go_on):  # what an earlier call has left
            return False
        with suppress(FileNotFoundError):
            os.rename(name, going, src_dir_fd=within, dst_dir_fd=within)
        return _remove(within, going, go_on)
    finally:
        os.close(within)


def _remove(within: int, name: str, go_on: Callable[[], bool]) -> bool:
    """Remove what has this name in an open folder; whether it is gone."""
    try:
        folder = os.open(name, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC, dir_fd=within)
    except FileNotFoundError:
        return True
    except OSError as error:
        if error.errno not in (errno.ENOTDIR, errno.ELOOP):
            raise
        os.unlink(name, dir_fd=within)
        return True
    try:
        with os.scandir(folder) as entries:
            names = [entry.name for entry in entries]
        for each in names:
            if not go_on() or not _remove(folder, each, go_on):
                return False
    finally:
        os.close(folder)
    os.rmdir(name, dir_fd=within)
    return True
