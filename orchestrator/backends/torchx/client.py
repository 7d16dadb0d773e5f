"""Calls to torchx's runner, which runs in a process of its own (program.py)."""

from __future__ import annotations

import json
import os
import select
import subprocess
import threading
import time
from collections.abc import Collection, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from torchx.specs import AppDef

from orchestrator.domain.errors import BackendUnavailable, LaunchRefused
from orchestrator.domain.job.appdef import render_appdef

_PROGRAM = Path(__file__).with_name("program.py")
_BYTES = 65536
_END_S = 30.0  # for the runner to end its own jobs


@dataclass(frozen=True, slots=True)
class AppSight:
    """What torchx says of an app: a name of `torchx.specs.AppState`, and the scheduler's words."""

    state: str
    words: str


class TorchxClient:
    """Thread-safe. The process starts with the first call, and again after it has ended."""

    def __init__(self, scheduler: str, *, python: str, folder: Path, timeout_s: float) -> None:
        """`folder` is where torchx keeps files of its own."""
        self._scheduler, self._python, self._folder, self._timeout_s = scheduler, python, folder, timeout_s
        self._lock = threading.Lock()
        self._process: subprocess.Popen[bytes] | None = None
        self._calls, self._rest = 0, b""
        self._answers = -1  # a descriptor

    def submit(self, app: AppDef, cfg: Mapping[str, object]) -> str:
        """Submit an app and return its id. Raises BackendUnavailable, and LaunchRefused if it would fail again."""
        return str(self._call("submit", app=render_appdef(app), cfg=dict(cfg)))

    def plan(self, app: AppDef, cfg: Mapping[str, object]) -> str:
        """Return the scheduler's request, in the scheduler's words. Raises as `submit`."""
        return str(self._call("plan", app=render_appdef(app), cfg=dict(cfg)))

    def look(self, apps: Collection[str]) -> Mapping[str, AppSight | None]:
        """Return what torchx says of each app. None for an app that it does not know. Raises BackendUnavailable."""
        found: Mapping[str, Any] = self._ask("look", apps=sorted(apps)) if apps else {}
        return {app: None if each is None else AppSight(**each) for app, each in found.items()}

    def cancel(self, app: str) -> None:
        """Raises BackendUnavailable."""
        self._ask("cancel", app=app)

    def schedulers(self) -> Sequence[str]:
        """Return the schedulers that torchx knows. Raises BackendUnavailable."""
        found: Sequence[str] = self._ask("schedulers")
        return found

    def close(self) -> None:
        """End the process. Jobs of a scheduler on this machine end with it."""
        with self._lock:
            self._end()

    def _ask(self, call: str, **values: object) -> Any:
        try:
            return self._call(call, **values)
        except LaunchRefused as error:
            raise BackendUnavailable(str(error)) from error

    def _call(self, call: str, **values: object) -> Any:
        with self._lock:
            process = self._start()
            self._calls += 1
            request = json.dumps({"id": self._calls, "call": call, **values}).encode() + b"\n"
            try:
                assert process.stdin is not None
                process.stdin.write(request)
                process.stdin.flush()
                answer = self._await_answer(process, self._calls)
            except (OSError, ValueError) as error:
                self._end()
                raise BackendUnavailable(f"torchx's runner has ended: {error}") from error
        if "error" not in answer:
            return answer["value"]
        words = f"torchx ({self._scheduler}): {answer['error']}"
        raise LaunchRefused(words) if answer["refused"] else BackendUnavailable(words)

    def _await_answer(self, process: subprocess.Popen[bytes], number: int) -> Mapping[str, Any]:
        """Skip answers to earlier calls, which came too late."""
        deadline = time.monotonic() + self._timeout_s
        while True:
            line, found, rest = self._rest.partition(b"\n")
            if found:
                self._rest = rest
                answer: Mapping[str, Any] = json.loads(line)
                if answer["id"] == number:
                    return answer
                continue
            ready, _, _ = select.select([self._answers], [], [], max(0.0, deadline - time.monotonic()))
            if not ready:
                raise BackendUnavailable(f"torchx ({self._scheduler}) has not answered for {self._timeout_s:.0f} s")
            read = os.read(self._answers, _BYTES)
            if not read:
                raise OSError(f"exit status {process.wait(_END_S)}; see {self._folder / 'runner.log'}")
            self._rest += read

    def _start(self) -> subprocess.Popen[bytes]:
        if self._process is not None and self._process.poll() is None:
            return self._process
        self._end()
        self._rest = b""
        # Jobs of a scheduler on this machine inherit the environment, so it has no settings of the service.
        own = {name: value for name, value in os.environ.items() if not name.startswith("ORCHESTRATOR_")}
        self._answers, written = os.pipe()
        try:
            self._folder.mkdir(mode=0o700, parents=True, exist_ok=True)
            with (self._folder / "runner.log").open("w+b") as log:
                self._process = subprocess.Popen(
                    [self._python, str(_PROGRAM), self._scheduler, str(written)],
                    stdin=subprocess.PIPE,
                    stdout=log,  # plug-ins may print
                    stderr=log,
                    pass_fds=[written],
                    cwd=self._folder,
                    env=own,
                    start_new_session=True,  # Ctrl-C is for the service
                )
        except OSError as error:
            os.close(self._answers)
            raise BackendUnavailable(f"torchx's runner cannot start: {error}") from error
        finally:
            os.close(written)
        return self._process

    def _end(self) -> None:
        process, self._process = self._process, None
        if process is None:
            return
        assert process.stdin is not None
        with suppress(OSError):  # what was not written yet
            process.stdin.close()
        os.close(self._answers)
        try:
            process.wait(_END_S)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()
