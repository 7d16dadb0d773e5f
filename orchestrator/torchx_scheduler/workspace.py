"""Copy torchx's workspace, the folder in which `torchx run` is called.

Each submission copies it to a new folder. So later edits change no attempt of the job, and the job writes no files into
the user's tree. A dry run copies nothing. `.torchxignore` in the workspace lists what is not copied, with torchx's
rules: shell patterns, the last match wins, `!` includes a path again.
"""

from __future__ import annotations

import fnmatch
import hashlib
import os
import shutil
import uuid
from collections.abc import Callable, Collection, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import unquote, urlsplit

IGNORE_FILE = ".torchxignore"
MOST_BYTES, MOST_FILES = 256 * 1024 * 1024, 20_000
_LEFT_OUT = frozenset({".git", ".hg", "__pycache__", ".venv", "venv", "node_modules", ".mypy_cache", ".pytest_cache"})


class NoWorkspace(ValueError):
    """The workspace is not a folder on this machine."""


class WorkspaceTooLarge(ValueError):
    """The workspace exceeds the limit on bytes or files. The message says what to do."""


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkspaceCopy:
    """A planned copy. `fill` copies into an empty folder. `source` is None if several folders are merged."""

    target: Path
    fill: Callable[[Path], None]
    source: Path | None = None


def parse_workspace(text: str) -> Path:
    """Parse torchx's `--workspace`, a path or a file:// URL. Raises NoWorkspace."""
    parts = urlsplit(text)
    if parts.scheme not in ("", "file") or parts.netloc:
        raise NoWorkspace(f"--workspace is {text}, must be a folder on this machine")
    folder = Path(unquote(parts.path) if parts.scheme else text)
    if not folder.is_dir():
        raise NoWorkspace(f"--workspace is {text}, but there is no such folder")
    return folder.absolute()


def plan_copy(
    fill: Callable[[Path], None], workspaces: Path, *, name: str, key: str | None, source: Path | None = None
) -> WorkspaceCopy:
    """Plan a copy with a new target. Submissions with the same idempotency key share one target."""
    own = hashlib.sha256(key.encode()).hexdigest()[:12] if key else uuid.uuid4().hex[:12]
    return WorkspaceCopy(fill=fill, source=source, target=workspaces.absolute() / f"{name or 'job'}-{own}")


def check_size(source: Path, *, without: Collection[Path] = ()) -> None:
    """Raise WorkspaceTooLarge if the workspace exceeds the limits."""
    size = count = 0
    for path in files_of(source, without=without):
        size, count = size + path.lstat().st_size, count + 1
        if size > MOST_BYTES or count > MOST_FILES:
            raise WorkspaceTooLarge(
                f"the workspace {source} holds more than {MOST_BYTES >> 20} MB or {MOST_FILES} files: list what is "
                f'not code in {IGNORE_FILE}, or run the job in the folder itself with --workspace=""'
            )


def make_copy(copy: WorkspaceCopy) -> None:
    """Copy the workspace. Does nothing if the target exists. Raises OSError."""
    if copy.target.is_dir():
        return
    copy.target.parent.mkdir(parents=True, exist_ok=True)
    unfinished = copy.target.with_name(f".{copy.target.name}.{uuid.uuid4().hex[:8]}")
    try:
        unfinished.mkdir()
        copy.fill(unfinished)
        unfinished.rename(copy.target)
    except OSError:
        if not copy.target.is_dir():  # otherwise another process with the same key was faster
            raise
    finally:
        shutil.rmtree(unfinished, ignore_errors=True)


def copy_code(source: Path, target: Path, *, without: Collection[Path] = ()) -> None:
    """Copy the files of `files_of`. Raises OSError."""
    for path in files_of(source, without=without):
        copy = target / path.relative_to(source)
        copy.parent.mkdir(parents=True, exist_ok=True)
        shutil.copy2(path, copy, follow_symlinks=False)


def files_of(source: Path, *, without: Collection[Path] = ()) -> Iterator[Path]:
    """Yield the files and links to copy: no caches, no version control, no ignored files.

    The folders `without` are skipped too, because a run directory within the workspace holds the copies themselves.
    """
    patterns = _read_patterns(source / IGNORE_FILE)
    excluded = {folder.resolve() for folder in without}
    for here, folders, names in os.walk(source):
        there = Path(here).relative_to(source)
        skipped = {name for name in (*folders, *names) if name in _LEFT_OUT or _is_ignored(there / name, patterns)}
        skipped |= {name for name in folders if Path(here, name).resolve() in excluded}
        links = [name for name in folders if Path(here, name).is_symlink()]
        folders[:] = sorted(set(folders) - skipped - set(links))
        for name in sorted({*names, *links} - skipped):
            path = Path(here, name)
            if path.is_symlink() or path.is_file():  # no socket, pipe or device
                yield path


def _read_patterns(file: Path) -> Sequence[str]:
    try:
        lines = file.read_text(encoding="utf-8").splitlines()
    except OSError:
        return ()
    patterns = (line.partition("#")[0].strip() for line in lines)
    return tuple(pattern for pattern in patterns if pattern not in ("", "."))


def _is_ignored(path: Path, patterns: Sequence[str]) -> bool:
    ignored = False
    for pattern in patterns:
        includes = pattern.startswith("!")
        if fnmatch.fnmatch(path.as_posix(), pattern.removeprefix("!").rstrip("/")):
            ignored = not includes
    return ignored
