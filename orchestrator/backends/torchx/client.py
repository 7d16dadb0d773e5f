"""Calls to torchx's runner, which runs in a process of its own (program.py)."""

from __future__ import annotations

import json
import os
import selectors
import subprocess
import tempfile
import threading
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from torchx.specs import AppDef

from orchestrator.domain.errors import BackendUnavailable, LaunchRefused
from orchestrator.domain.job.appdef import render_appdef

_PROGRAM = Path(__file__).with_name("program.py")
_BYTES = 65536
_END_S = 30.0  # for the runner to end its own jobs


@dataclass(frozen=True, slots=True)
class AppStatus:
    """What torchx says of an app: a name of `torchx.specs.AppState`, and the scheduler's words."""

    state: str
    words: str


@dataclass
class _Runner:
    """A running process. One call is made at a time, and the next one only once the last one is answered."""

    process: subprocess.Popen[bytes]
    requests: int  # a pipe, which does not block
    responses: int  # a pipe
    log: int  # the file that gets its output
    calls: int = 0
    rest: bytes = b""
    unanswered: dict[int, str] = field(default_factory=dict)  # calls, each with the tag of its caller


class TorchxClient:
    """Thread-safe. The process starts with the first call, and again after it has ended."""

    def __init__(self, scheduler: str, *, python: str, folder: Path, timeout_s: float) -> None:
        """`folder` is where torchx keeps files of its own."""
        self._scheduler, self._python, self._folder, self._timeout_s = scheduler, python, folder, timeout_s
        self._lock = threading.Lock()
        self._runner: _Runner | None = None
        self._late: dict[str, str] = {}

    def submit(self, app: AppDef, cfg: Mapping[str, object], *, tag: str) -> str:
        """Submit an app and return its id. Raises BackendUnavailable, and LaunchRefused if it would fail again."""
        return str(self._call("submit", tag=tag, app=render_appdef(app), cfg=dict(cfg)))

    def take_late(self) -> Mapping[str, str]:
        """Return the apps of submissions that were answered too late, by their tags. Returns each only once."""
        late, self._late = self._late, {}
        return late

    def plan(self, app: AppDef, cfg: Mapping[str, object]) -> str:
        """Return the scheduler's request, in the scheduler's words. Raises as `submit`."""
        return str(self._call("plan", app=render_appdef(app), cfg=dict(cfg)))

    def look(self, app: str) -> AppStatus | None:
        """Return what torchx says of an app. None if it does not know the app. Raises BackendUnavailable."""
        found: Mapping[str, str] | None = self._ask("look", app=app)
        return None if found is None else AppStatus(**found)

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
            return self._call(call, "", **values)
        except LaunchRefused as error:
            raise BackendUnavailable(str(error)) from error

    def _call(self, call: str, tag: str = "", **values: object) -> Any:
        with self._lock:
            runner, deadline = self._start(), time.monotonic() + self._timeout_s
            try:
                self._await_answers(runner, deadline, are_late=True)
                runner.calls += 1
                request = json.dumps({"id": runner.calls, "call": call, **values}).encode() + b"\n"
                self._write(runner, request, deadline)
                runner.unanswered[runner.calls] = tag
                answer = self._await_answers(runner, deadline)[runner.calls]
            except (OSError, ValueError, LookupError) as error:
                words = f"torchx's runner failed: {error}{self._last_words(runner)}"
                self._end()
                raise BackendUnavailable(words) from error
        if "error" not in answer:
            return answer["value"]
        words = f"torchx ({self._scheduler}): {answer['error']}"
        raise LaunchRefused(words) if answer["refused"] else BackendUnavailable(words)

    def _await_answers(
        self, runner: _Runner, deadline: float, *, are_late: bool = False
    ) -> Mapping[int, Mapping[str, Any]]:
        """Return the answers to the calls that are not answered yet."""
        found: dict[int, Mapping[str, Any]] = {}
        while runner.unanswered:
            line, is_whole, rest = runner.rest.partition(b"\n")
            if is_whole:
                runner.rest, answer = rest, json.loads(line)
                tag = runner.unanswered.pop(answer["id"])
                found[answer["id"]] = answer
                if are_late and tag and "value" in answer:
                    self._late[tag] = str(answer["value"])
                continue
            self._wait(runner.responses, selectors.EVENT_READ, deadline)
            read = os.read(runner.responses, _BYTES)
            if not read:
                raise OSError(_describe_end(runner.process))
            runner.rest += read
        return found

    def _write(self, runner: _Runner, request: bytes, deadline: float) -> None:
        """A request that was written in part cannot be taken back, so the process ends then."""
        rest = request
        try:
            while rest:
                self._wait(runner.requests, selectors.EVENT_WRITE, deadline)
                rest = rest[os.write(runner.requests, rest) :]
        except BackendUnavailable:
            if rest != request:
                runner.process.kill()
                self._end()
            raise

    def _wait(self, descriptor: int, event: int, deadline: float) -> None:
        with selectors.DefaultSelector() as selector:
            selector.register(descriptor, event)
            if not selector.select(max(0.0, deadline - time.monotonic())):
                raise BackendUnavailable(f"torchx ({self._scheduler}) has not answered for {self._timeout_s:.0f} s")

    def _start(self) -> _Runner:
        if self._runner is not None and self._runner.process.poll() is None:
            return self._runner
        self._end()
        # Jobs of a scheduler on this machine inherit the environment, so it has no settings of the service.
        own = {name: value for name, value in os.environ.items() if not name.startswith("ORCHESTRATOR_")}
        read, asks = os.pipe()
        answers, written = os.pipe()
        try:
            self._folder.mkdir(mode=0o700, parents=True, exist_ok=True)
            with tempfile.TemporaryFile("a+b") as printed:
                log = os.dup(printed.fileno())
                process = subprocess.Popen(
                    [self._python, str(_PROGRAM), self._scheduler, str(written)],
                    stdin=read,
                    stdout=printed,  # plugins may print
                    stderr=printed,
                    pass_fds=[written],
                    cwd=self._folder,
                    env=own,
                    start_new_session=True,  # Ctrl-C is for the service
                )
        except OSError as error:
            os.close(asks)
            os.close(answers)
            raise BackendUnavailable(f"torchx's runner cannot start: {error}") from error
        finally:
            os.close(read)
            os.close(written)
        os.set_blocking(asks, False)
        self._runner = _Runner(process, asks, answers, log)
        return self._runner

    def _last_words(self, runner: _Runner) -> str:
        begin = max(0, os.fstat(runner.log).st_size - _BYTES)
        lines = os.pread(runner.log, _BYTES, begin).decode(errors="replace").strip().splitlines()
        return f": {lines[-1].strip()[:300]}" if lines else ""

    def _end(self) -> None:
        runner, self._runner = self._runner, None
        if runner is None:
            return
        os.close(runner.requests)
        os.close(runner.responses)
        os.close(runner.log)
        try:
            runner.process.wait(_END_S)
        except subprocess.TimeoutExpired:
            runner.process.kill()
            runner.process.wait()


def _describe_end(process: subprocess.Popen[bytes]) -> str:
    """Say how the process ended, after it closed its answers. Kill it if it does not end within `_END_S`."""
    try:
        status = process.wait(_END_S)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()
        return "it closed its answers, did not end, and was killed"
    return f"signal {-status}" if status < 0 else f"exit status {status}"
