"""Copy the agent's package, and a workdir that the nodes do not mount, to the shared run directory.

Each copy is stored once, under the hash of its content. It appears whole or not at all.
"""

from __future__ import annotations

import contextlib
import importlib.util
import io
import os
import re
import uuid
import zipfile
from collections.abc import Collection
from dataclasses import dataclass, field
from pathlib import Path

from orchestrator import rundir
from orchestrator.backends.tree import NO_EXCLUSIONS, Exclusions, digest_tree, identify, open_folder, walk
from orchestrator.domain.errors import ConfigurationError, LaunchRefused
from orchestrator.domain.specs.workdir import WorkdirPolicy, why_not_in_root
from orchestrator.jobfolder.folder import Folder, JobFolder
from orchestrator.jobfolder.removal import remove

AGENTS, WORKDIRS = ".agents", ".workdirs"  # below the root
_PINNED = re.compile(rf"{re.escape(WORKDIRS)}/[0-9a-f]{{32}}")


def find_package() -> Path:
    """Return the folder of the installed package `trainer`. Raises ConfigurationError."""
    found = importlib.util.find_spec("trainer")
    if found is None or found.origin is None:
        raise ConfigurationError("the package `trainer` is not installed in the service's environment")
    return Path(found.origin).parent.resolve()


def agent_folder(package: Path) -> Path:
    """Return the package's destination, relative to the root."""
    return Path(AGENTS) / digest_tree(package)


def ship_agent(package: Path, root: Path) -> None:
    """Copy the package below the root. Idempotent. Raises OSError."""
    _place(package, root, AGENTS, inside=package.name)


def pack_agent(package: Path) -> bytes:
    """Pack the package as a zip file. The same content gives the same bytes."""
    packed = io.BytesIO()
    folder = open_folder(package)
    try:
        with zipfile.ZipFile(packed, "w", zipfile.ZIP_DEFLATED, compresslevel=9) as archive:
            for each in walk(folder):
                if each.opened is not None:
                    _pack_file(archive, f"{package.name}/{each.name}", each.opened)
    finally:
        os.close(folder)
    return packed.getvalue()


def is_shared(workdir: Path, shared: Collection[Path]) -> bool:
    """Whether the nodes mount the workdir, so that no copy is needed."""
    return any(workdir == path or path in workdir.parents for path in shared)


@dataclass(frozen=True, slots=True)
class Pin:
    """A file in a job's folder that names the job's copy of its workdir. The job can change it, so `read` checks it."""

    job: JobFolder
    name: str

    def read(self) -> Path | None:
        with self.job.open() as folder:
            document = rundir.read_document(folder, Path(self.name))
        pinned = None if document is None else document.get("folder")
        return Path(pinned) if isinstance(pinned, str) and _PINNED.fullmatch(pinned) else None

    def write(self, copy: Path) -> None:
        with self.job.make() as folder:
            rundir.write_document(folder, Path(self.name), {"folder": str(copy)})


@dataclass(frozen=True, slots=True, kw_only=True)
class Workdirs:
    """How a cluster's nodes get a job's workdir. `root` and `shared` are paths on the nodes."""

    root: Path
    service_root: Path
    shared: tuple[Path, ...] = ()
    policy: WorkdirPolicy = field(default_factory=WorkdirPolicy)

    def why_refused(self, workdir: Path) -> str | None:
        """Return a phrase that says why a job cannot use this workdir, or None. Does not check that it exists."""
        place = Path(os.path.normpath(workdir))
        if is_shared(place, [self.root]):
            return why_not_in_root(place, self.root, allow_workspaces=True)
        if place == Path("/") or is_shared(place, self.shared):
            return None  # nothing is copied
        return self.policy.why_refused(place.resolve())

    def provide(self, workdir: Path, *, pin: Pin) -> str:
        """Return the workdir's path on the nodes. Copies an unmounted workdir first. Raises OSError, LaunchRefused."""
        place = Path(os.path.normpath(workdir))
        below = is_shared(place, [self.root])
        here = self.service_root / place.relative_to(self.root) if below else place
        if not here.is_dir():
            raise LaunchRefused(f"run.workdir {workdir} is not a folder on the service's machine")
        if place == Path("/") or is_shared(place, (self.root, *self.shared)):
            self._require(workdir)
            return str(place)
        return str(self.root / ship_workdir(place, self.service_root, pin=pin, policy=self.policy))

    def _require(self, workdir: Path) -> None:
        reason = self.why_refused(workdir)
        if reason is not None:
            raise LaunchRefused(f"run.workdir {workdir} {reason}")


def ship_workdir(workdir: Path, root: Path, *, pin: Pin, policy: WorkdirPolicy | None = None) -> Path:
    """Copy a workdir below the root, write the copy's path to `pin`, and return it relative to the root.

    If `pin` names an existing copy, that copy is returned, so later attempts of a job use the files of the first.
    Raises OSError, and LaunchRefused for a workdir that is too large or that the policy refuses.
    """
    pinned = pin.read()
    if pinned is not None and _is_there(root, pinned):
        return pinned
    policy = policy or WorkdirPolicy()
    source = workdir.resolve()
    reason = policy.why_refused(source)
    if reason is not None:
        raise LaunchRefused(f"run.workdir {workdir} {reason}")
    folder = Path(WORKDIRS) / _place(source, root, WORKDIRS, exclusions=_find_exclusions(policy, root))
    pin.write(folder)
    return folder


def _find_exclusions(policy: WorkdirPolicy, root: Path) -> Exclusions:
    return Exclusions(identify([*map(Path, policy.private), root]), identify([*map(Path, policy.left_out)]))


def _is_there(root: Path, path: Path) -> bool:
    with Folder.of(root) as top, top.within(path) as folder:
        return folder.exists


def _place(source: Path, root: Path, beside: str, *, inside: str = "", exclusions: Exclusions = NO_EXCLUSIONS) -> str:
    """Copy the source into the folder `beside` of the root, under the hash of its content. Returns the hash."""
    name = digest_tree(source, exclusions)
    with Folder.of(root, make=True) as top, top.make(Path(beside)) as folder:
        if folder.use(Path(name)):  # housekeeping removes copies that are long unused
            return name
        temporary = f".{name}.{uuid.uuid4().hex}"
        try:
            with folder.make(Path(temporary, inside)) as target:
                copied = digest_tree(source, exclusions, into=target.fileno())  # the source may have changed
            with contextlib.suppress(OSError):  # another process stored the same content first
                folder.move_to(Path(temporary), folder, copied)
            return copied
        finally:
            with contextlib.suppress(OSError):
                remove(folder, temporary, lambda: True)


def _pack_file(archive: zipfile.ZipFile, name: str, opened: int) -> None:
    entry = zipfile.ZipInfo(name)  # always dated 1980, so that the bytes do not depend on the file's time
    entry.external_attr = 0o644 << 16
    with os.fdopen(os.dup(opened), "rb") as file:
        archive.writestr(entry, file.read(), zipfile.ZIP_DEFLATED)
