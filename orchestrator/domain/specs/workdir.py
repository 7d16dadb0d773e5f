"""Which folders the service may copy to the nodes for a job. Pure: the caller resolves links first."""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import PurePath

WORKSPACES = ".workspaces"  # in the run directory; clients copy their code there
# System folders: the service may read them, but submitters must not.
_MACHINE = tuple(map(PurePath, ("/boot", "/dev", "/etc", "/proc", "/run", "/sys", "/var/run")))
_JOB = re.compile(r"[a-z0-9][a-z0-9-]{0,62}-[a-z2-7]{8}")  # a job's id: its name and a random suffix
_PRIVATE = "it contains, or is in, a folder of the service or of the system; the setting `workdirs` cannot allow it"


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkdirPolicy:
    """All paths are absolute and resolved. `allowed` None means every folder that is not private.

    `private` are the service's own files and folders, `left_out` files that are not copied, and `home` is the home of
    the service's user.
    """

    allowed: tuple[PurePath, ...] | None = None
    private: tuple[PurePath, ...] = ()
    left_out: tuple[PurePath, ...] = ()
    home: PurePath | None = None

    def why_refused(self, workdir: PurePath) -> str | None:
        """Return why this folder is not copied, as a phrase. None if it may be."""
        if self._is_private(workdir):
            return f"is not copied to the nodes: {_PRIVATE}"
        if self.allowed is None or any(workdir.is_relative_to(folder) for folder in self.allowed):
            return None
        return "is not copied to the nodes: it is not in a folder that the setting `workdirs` allows"

    def _is_private(self, workdir: PurePath) -> bool:
        for own in (*_MACHINE, *self.private):
            if workdir.is_relative_to(own) or own.is_relative_to(workdir):
                return True
        if self.home is None:
            return False
        return self.home.is_relative_to(workdir) or _is_hidden(workdir, self.home)


def find_job_ids(path: str) -> list[str]:
    """Return the parts of a path or URL that have the form of a job's id."""
    return [part for part in path.split("/") if _JOB.fullmatch(part)]


def why_not_in_root(path: PurePath, root: PurePath, *, allow_workspaces: bool = False) -> str | None:
    """Return why a job must not name this folder of the run directory, as a phrase. None if it may."""
    first, *below = path.relative_to(root).parts or ("",)
    if allow_workspaces and first == WORKSPACES and below:
        return None
    if not first or first.startswith(".") or _JOB.fullmatch(first):
        return "is in a folder of the run directory that belongs to the service or to a job"
    return None


def _is_hidden(path: PurePath, home: PurePath) -> bool:
    """Whether a path is in a hidden folder of the home, such as ~/.ssh."""
    below = path.relative_to(home).parts if path.is_relative_to(home) else ()
    return below[:1] != () and below[0].startswith(".")
