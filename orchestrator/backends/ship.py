"""What goes with a job to the shared run directory: the agent's package, and a workdir that the nodes do not see.

Each content is written once, under its hash; it appears whole or not at all.
"""

from __future__ import annotations

import contextlib
import hashlib
import importlib.util
import io
import os
import shutil
import uuid
import zipfile
from collections.abc import Collection, Iterator, Sequence
from pathlib import Path

from orchestrator import rundir
from orchestrator.domain.errors import ConfigurationError, LaunchRefused

AGENTS, WORKDIRS = ".agents", ".workdirs"  # below the root
_LEFT_OUT = frozenset({".git", ".hg", "__pycache__", ".venv", "venv", "node_modules", ".mypy_cache", ".pytest_cache"})
# The machine's own: what lies there was given to the service and not to whoever submits a job, its keys above all.
_NEVER = tuple(map(Path, ("/dev", "/etc", "/proc", "/run", "/sys", "/var/run")))
_MOST_BYTES, _MOST_FILES = 256 * 1024 * 1024, 20_000


def find_package() -> Path:
    """The installed package `trainer`. Raises ConfigurationError."""
    found = importlib.util.find_spec("trainer")
    if found is None or found.origin is None:
        raise ConfigurationError("the package `trainer` is not installed beside the service")
    return Path(found.origin).parent


def agent_folder(package: Path) -> Path:
    """Where below the root the package is to lie."""
    return Path(AGENTS) / _digest(package)


def ship_agent(package: Path, root: Path) -> None:
    """Idempotent. Raises OSError."""
    _place(package, root / agent_folder(package), inside=package.name)


def pack_agent(package: Path) -> bytes:
    """The package as a zip file: the same content gives the same bytes."""
    packed = io.BytesIO()
    with zipfile.ZipFile(packed, "w", zipfile.ZIP_DEFLATED, compresslevel=9) as archive:
        for path in _files(package):
            entry = zipfile.ZipInfo(str(path.relative_to(package.parent)))  # of 1980, whatever the file's own time is
            entry.external_attr = 0o644 << 16
            archive.writestr(entry, path.read_bytes(), zipfile.ZIP_DEFLATED)
    return packed.getvalue()


def is_shared(workdir: Path, shared: Collection[Path]) -> bool:
    """Whether the nodes see the workdir as it is."""
    return any(workdir == path or path in workdir.parents for path in shared)


def ship_workdir(workdir: Path, root: Path, *, pin: Path) -> Path:
    """The workdir's place below the root: what it held when `pin`, which says so from then on, was written first.

    Later attempts of a job get what its first one had. Raises OSError, and LaunchRefused for one that is too large or
    that holds what is the machine's own.
    """
    pinned = rundir.read_document(pin)
    if pinned is not None and (root / str(pinned["folder"])).is_dir():
        return Path(str(pinned["folder"]))
    _refuse_the_machine_s_own(workdir.resolve())
    folder = Path(WORKDIRS) / _digest(workdir)
    _place(workdir, root / folder)
    rundir.write_document(pin, {"folder": str(folder)})
    return folder


def _refuse_the_machine_s_own(workdir: Path) -> None:
    for own in _NEVER:
        if workdir.is_relative_to(own) or own.is_relative_to(workdir):
            raise LaunchRefused(f"run.workdir {workdir} is not copied for jobs: {own} is the service's machine's own")


def _place(source: Path, target: Path, *, inside: str = "") -> None:
    if target.is_dir():
        os.utime(target)  # used again: housekeeping removes what has not been used for long
        return
    target.parent.mkdir(parents=True, exist_ok=True)
    temporary = target.with_name(f".{target.name}.{uuid.uuid4().hex}")
    try:
        shutil.copytree(source, temporary / inside, symlinks=True, ignore=_left_out)
        with contextlib.suppress(OSError):  # another process was faster: the content is the same
            temporary.rename(target)
    finally:
        shutil.rmtree(temporary, ignore_errors=True)


def _digest(folder: Path) -> str:
    """Of names, modes and contents. Raises LaunchRefused for a folder that is no code any more."""
    digest, size, count = hashlib.sha256(), 0, 0
    for path in _files(folder):
        name = str(path.relative_to(folder)).encode(errors="surrogateescape")
        content = str(path.readlink()).encode(errors="surrogateescape") if path.is_symlink() else path.read_bytes()
        executable = not path.is_symlink() and os.access(path, os.X_OK)
        size, count = size + len(content), count + 1
        if size > _MOST_BYTES or count > _MOST_FILES:
            raise LaunchRefused(
                f"run.workdir {folder} holds more than {_MOST_BYTES >> 20} MB or {_MOST_FILES} files: "
                "put it where the nodes see it, and name that place in the cluster's shared_paths"
            )
        for part in (name, b"x" if executable else b"-", content):
            digest.update(len(part).to_bytes(8, "big") + part)
    return digest.hexdigest()[:32]


def _files(folder: Path) -> Iterator[Path]:
    for here, folders, names in os.walk(folder):
        out = _left_out(here, [*folders, *names])
        folders[:] = sorted(set(folders) - out)
        yield from (Path(here, name) for name in sorted(set(names) - out))
        yield from (Path(here, name) for name in folders if Path(here, name).is_symlink())


def _left_out(here: str, names: Sequence[str]) -> set[str]:
    """What is no code, and what no copy can be made of: sockets, pipes, devices."""
    paths = {name: Path(here, name) for name in names}
    special = {name for name, path in paths.items() if not (path.is_symlink() or path.is_file() or path.is_dir())}
    return special | (_LEFT_OUT & set(names))
