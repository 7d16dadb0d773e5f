"""Where results come from: code, command, versions, image. Stored in each manifest and compared on restore.

git needs time to inspect a working directory. Rank 0 runs it in a thread after the first step, so that neither a
restart nor a stop waits for it.
"""

from __future__ import annotations

import os
import platform
import subprocess
import sys
import threading
from collections.abc import Mapping
from dataclasses import asdict
from functools import cached_property
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

import torch

from trainer.contract.config import TrainerConfig
from trainer.contract.env import IMAGE, WorkerPlace
from trainer.contract.exit_record import EventKind
from trainer.contract.manifest import Manifest
from trainer.snapshot.lineage import Restore, Tell

_GIT_TIMEOUT_S = 10.0
_MOST_NAMED = 8  # differences in one sentence


class Provenance:
    def __init__(self, config: TrainerConfig, place: WorkerPlace, restore: Restore | None, tell: Tell) -> None:
        self.job_id = place.job_id
        self._config, self._restore, self._tell = asdict(config), restore, tell
        self._document: dict[str, object] = {
            "command": _own_command(),
            "image": os.environ.get(IMAGE),
            "host": platform.node(),
        }
        self._thread: threading.Thread | None = None
        self._is_complete = threading.Event()

    @cached_property
    def versions(self) -> dict[str, str]:
        return {"torch": torch.__version__, "python": platform.python_version(), "trainer": _own_version()}

    def start(self) -> None:
        """Collect in the background and report what differs from the restored snapshot. Idempotent."""
        if self._thread is None:
            self._thread = threading.Thread(target=self._collect, name="provenance", daemon=True)
            self._thread.start()

    def stop_waiting(self) -> None:
        """Do not wait for git any more, because the job is stopping."""
        self._is_complete.set()

    def document(self) -> dict[str, object]:
        """The entry of a manifest: command, image, host, and the commit. Waits for git."""
        self.start()
        self._is_complete.wait()
        return self._document

    def _collect(self) -> None:
        try:
            self._document = {**describe_code(os.getcwd()), **self._document}  # noqa: PTH109  # a string is wanted
            self._compare()
        finally:
            self._is_complete.set()

    def _compare(self) -> None:
        if self._restore is None:
            return
        differences = compare(self._restore.manifest, self._config, self.versions, self._document)
        if differences:
            name = self._restore.path.name
            sentence = f"changed since {name}: {'; '.join(differences[:_MOST_NAMED])}"
            self._tell(EventKind.PROVENANCE_CHANGED, sentence, {"name": name, "differences": differences})


def describe_code(directory: str) -> dict[str, object]:
    """The git commit of a directory, and whether files differ from it. Both are None without git."""
    commit = _git(directory, "rev-parse", "HEAD")
    changed = None if commit is None else _git(directory, "status", "--porcelain", "--untracked-files=no")
    return {"commit": commit, "dirty": None if changed is None else bool(changed)}


def compare(
    saved: Manifest, config: Mapping[str, object], versions: Mapping[str, str], document: Mapping[str, object]
) -> list[str]:
    """One phrase for each difference. A value that one side does not know is no difference."""
    then, was_config = saved.details.get("provenance"), saved.details.get("config")
    pairs = [
        *_pairs("", was_config if isinstance(was_config, dict) else {}, config),
        *_pairs("version of ", saved.versions, versions),
        *_pairs("", then if isinstance(then, dict) else {}, document, ("commit", "dirty", "command", "image")),
    ]
    return [f"{name} was {_short(before)} and is {_short(now)}" for name, before, now in pairs]


def _pairs(
    prefix: str, before: Mapping[str, object], now: Mapping[str, object], names: tuple[str, ...] | None = None
) -> list[tuple[str, object, object]]:
    known = [name for name in names or now if before.get(name) is not None and now.get(name) is not None]
    return [(prefix + name, before[name], now[name]) for name in known if before[name] != now[name]]


def _own_command() -> list[str]:
    """The command line of this process. In a forked worker `sys.orig_argv` is that of the fork server."""
    try:
        shown = Path("/proc/self/cmdline").read_bytes()
    except OSError:
        return " ".join(sys.orig_argv).split()
    return shown.replace(b"\0", b" ").decode(errors="replace").split()


def _short(value: object) -> str:
    text = " ".join(map(str, value)) if isinstance(value, list) else str(value)
    return text if len(text) <= 60 else f"{text[:57]}..."


def _git(directory: str, *arguments: str) -> str | None:
    command = ["git", "--no-optional-locks", "-C", directory, *arguments]
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=_GIT_TIMEOUT_S, check=True)
    except (OSError, subprocess.SubprocessError):
        return None
    return done.stdout.strip()


def _own_version() -> str:
    try:
        return version("elastic-orchestrator")
    except PackageNotFoundError:
        return "unknown"  # run from a source tree
