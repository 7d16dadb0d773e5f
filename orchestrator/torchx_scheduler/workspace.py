"""torchx's workspace: the folder that `torchx run` is called in travels with the job, as it was at that moment.

It is copied when the job is submitted, not by a dry run, to a folder of its own: what is edited later changes no
attempt of the job, and what the job writes beside its code stays out of the user's tree. `.torchxignore` in the
workspace says what stays behind, as torchx reads it: shell patterns, the last match wins, `!` takes one back.
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
    """What was given is no folder of this machine."""


class TooMuch(ValueError):
    """The folder holds more than code; the text says what to do."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Journey:
    """Where a workspace will lie, and what copies it into an empty folder; `source` where it is one folder now."""

    target: Path
    fill: Callable[[Path], None]
    source: Path | None = None


def parse_workspace(text: str) -> Path:
    """The folder that torchx's `--workspace` names: a path, or file://. Raises NoWorkspace."""
    parts = urlsplit(text)
    if parts.scheme not in ("", "file") or parts.netloc:
        raise NoWorkspace(f"--workspace is {text}, must be a folder of this machine")
    folder = Path(unquote(parts.path) if parts.scheme else text)
    if not folder.is_dir():
        raise NoWorkspace(f"--workspace is {text}: there is no such folder")
    return folder.absolute()


def plan_journey(
    fill: Callable[[Path], None], workspaces: Path, *, name: str, key: str | None, source: Path | None = None
) -> Journey:
    """One place for each submission, and the same for those of one idempotency key."""
    own = hashlib.sha256(key.encode()).hexdigest()[:12] if key else uuid.uuid4().hex[:12]
    return Journey(fill=fill, source=source, target=workspaces.absolute() / f"{name or 'job'}-{own}")


def weigh(source: Path, *, without: Collection[Path] = ()) -> None:
    """Raises TooMuch."""
    size = count = 0
    for path in files_of(source, without=without):
        size, count = size + path.lstat().st_size, count + 1
        if size > MOST_BYTES or count > MOST_FILES:
            raise TooMuch(
                f"the workspace {source} holds more than {MOST_BYTES >> 20} MB or {MOST_FILES} files: name what is no "
                f'code in {IGNORE_FILE}, or run the job in the folder itself with --workspace=""'
            )


def travel(journey: Journey) -> None:
    """Copy the workspace; a second time changes nothing. Raises OSError."""
    if journey.target.is_dir():
        return
    journey.target.parent.mkdir(parents=True, exist_ok=True)
    unfinished = journey.target.with_name(f".{journey.target.name}.{uuid.uuid4().hex[:8]}")
    try:
        unfinished.mkdir()
        journey.fill(unfinished)
        unfinished.rename(journey.target)
    except OSError:
        if not journey.target.is_dir():  # else another process was faster, with the same key
            raise
    finally:
        shutil.rmtree(unfinished, ignore_errors=True)


def copy_code(source: Path, target: Path, *, without: Collection[Path] = ()) -> None:
    """Copy what travels. Raises OSError."""
    for path in files_of(source, without=without):
        copy = target / path.relative_to(source)
        copy.parent.mkdir(parents=True, exist_ok=True)
        shutil.copy2(path, copy, follow_symlinks=False)


def files_of(source: Path, *, without: Collection[Path] = ()) -> Iterator[Path]:
    """What travels: files and links, but no caches, no version control, and nothing that is ignored. Nor the folders
    `without`: a run directory within the workspace holds the copies themselves."""
    patterns = _read_patterns(source / IGNORE_FILE)
    apart = {folder.resolve() for folder in without}
    for here, folders, names in os.walk(source):
        there = Path(here).relative_to(source)
        stays = {name for name in (*folders, *names) if name in _LEFT_OUT or _is_ignored(there / name, patterns)}
        stays |= {name for name in folders if Path(here, name).resolve() in apart}
        links = [name for name in folders if Path(here, name).is_symlink()]
        folders[:] = sorted(set(folders) - stays - set(links))
        for name in sorted({*names, *links} - stays):
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
        takes_back = pattern.startswith("!")
        if fnmatch.fnmatch(path.as_posix(), pattern.removeprefix("!").rstrip("/")):
            ignored = not takes_back
    return ignored
