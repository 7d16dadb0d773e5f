"""The agent's side of the fork server: start workers and learn how they ended."""

from __future__ import annotations

import os
import signal
import subprocess
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress

from trainer.elastic.channel import Channel
from trainer.elastic.descriptors import wait_readable
from trainer.elastic.workers.program import Program, parse_program

_ROUSE_EVERY_S = 1.0
_WARM_WITHIN_S = 30.0
_KILLED = -signal.SIGKILL
_NOBODY = 0  # the pid of a worker that never started. To kill(2) it would mean the agent's own process group


class ForkServerError(Exception):
    """A worker cannot be started."""


class ForkedProcess:
    """A worker, with a part of subprocess.Popen's interface."""

    def __init__(self, fork_server: ForkServerClient, number: int) -> None:
        self.returncode: int | None = None
        self.because = ""  # why it is a new process instead of a fork; empty: it is a fork
        self.number = number
        self.started_pid: int | None = None
        self.was_spare = False  # forked before it was needed
        self._fork_server = fork_server

    @property
    def pid(self) -> int:
        """Blocks until the server has started the worker. Raises ForkServerError if it cannot."""
        while self.started_pid is None:
            self._fork_server.listen(_ROUSE_EVERY_S)
        return self.started_pid

    def poll(self) -> int | None:
        self._fork_server.listen(0.0)
        return self.returncode

    def wait(self, timeout: float | None = None) -> int:
        """Raises subprocess.TimeoutExpired."""
        deadline = None if timeout is None else time.monotonic() + timeout
        while self.poll() is None:
            left = _ROUSE_EVERY_S if deadline is None else deadline - time.monotonic()
            if left <= 0:
                raise subprocess.TimeoutExpired("worker", timeout or 0.0)
            self._fork_server.listen(min(left, _ROUSE_EVERY_S))
        assert self.returncode is not None
        return self.returncode

    def send_signal(self, number: int) -> None:
        self._signal(os.kill, number)

    def kill_group(self) -> None:
        """Send SIGKILL to the worker's process group."""
        self._signal(os.killpg, signal.SIGKILL)

    def _signal(self, send: Callable[[int, int], None], number: int) -> None:
        if self.poll() is None and (pid := self.pid) != _NOBODY:  # _NOBODY: the server was lost while `pid` waited
            with suppress(ProcessLookupError, PermissionError):
                send(pid, number)


class ForkServerClient:
    """The agent's connection to the fork server. Call all methods on the main thread.

    Agent and workers die with their server (child.py).
    """

    def __init__(self, channel: Channel, *, server_pid: int, base: Mapping[str, str]) -> None:
        """`base` is the environment of the server."""
        self.server_pid = server_pid
        self.imported_s = 0.0  # time that the server has spent on imports
        self.rss_bytes = 0  # of the server
        self.spare_bytes = 0  # private memory of the newest spare
        self.spares_ended = 0  # without an order; killed because memory ran out, in all likelihood
        self._spares_wanted, self._spares_ready = 0, 0
        self._warm_until_s: float | None = None
        self._processes: dict[int, ForkedProcess] = {}  # by number, those that have not ended
        self._numbers = 0
        self._roused_s = time.monotonic()
        self._base = base
        self._channel: Channel | None = channel

    def prepare(self, modules: Sequence[str], later: Sequence[str] = ()) -> None:
        """Import `modules` in the server before the next worker starts, and `later` while it is idle."""
        self._send({"import": list(modules), "later": list(later)})

    def keep_spares(self, count: int, warmup: str | None) -> None:
        """Keep `count` spare workers while others run; see spares.py."""
        self._spares_wanted = count
        self._send({"spares": count, "warmup": warmup})

    def warm_up(self) -> bool:
        """Make spares before the first worker starts. Whether they are ready, or have had enough time: call again."""
        if self._warm_until_s is None:
            self._warm_until_s = time.monotonic() + _WARM_WITHIN_S
            self._send({"early": True})
        self.listen(0.0)
        return self._spares_ready >= self._spares_wanted or time.monotonic() > self._warm_until_s

    def start(
        self,
        command: Sequence[str],
        environ: Mapping[str, str],
        *,
        local_rank: int,
        stdout: str | None,
        stderr: str | None,
    ) -> ForkedProcess:
        """Order a worker with exactly this environment. Does not wait for its start; reading its pid does."""
        program = parse_program(command)
        if self._channel is None:
            raise ForkServerError("the fork server is gone")
        self._numbers += 1
        process = self._processes[self._numbers] = ForkedProcess(self, self._numbers)
        fields = program.render() if isinstance(program, Program) else None
        self.rouse()  # a stopped server would never read a long order
        self._send(
            {
                "start": self._numbers,
                "environ": {name: value for name, value in environ.items() if self._base.get(name) != value},
                "without": [name for name in self._base if name not in environ],
                "program": fields,
                "because": program if isinstance(program, str) else "",
                "command": list(command),
                "local_rank": str(local_rank),
                "stdout": stdout,
                "stderr": stderr,
            }
        )
        return process

    def listen(self, timeout_s: float) -> None:
        """Wait up to `timeout_s` for messages of the server, and process all of them."""
        self._rouse_in_time()
        while self._channel is not None and wait_readable([self._channel], timeout_s):
            timeout_s = 0.0
            messages = self._channel.receive()
            if messages is None:
                self._lose()
                return
            refusals = [why for message in messages if (why := self._take(message)) is not None]
            if refusals:
                raise ForkServerError(refusals[0])
        if self._channel is None and timeout_s:
            time.sleep(timeout_s)

    def rouse(self) -> None:
        """Send SIGCONT to the server, in case a signal has stopped it."""
        if self._channel is not None:
            with suppress(ProcessLookupError, PermissionError):
                os.kill(self.server_pid, signal.SIGCONT)

    def _rouse_in_time(self) -> None:
        """Rouse it at most once a second. A stopped server says nothing of workers that have ended."""
        now_s = time.monotonic()
        if now_s - self._roused_s >= _ROUSE_EVERY_S:
            self._roused_s = now_s
            self.rouse()

    def close(self) -> None:
        """Idempotent."""
        if self._channel is not None:
            self._channel.close()
            self._channel = None

    def _send(self, message: Mapping[str, object]) -> None:
        if self._channel is not None:
            self._channel.send(message)

    def _take(self, message: Mapping[str, object]) -> str | None:
        """Process one message. Returns the reason if it says that a worker could not be started."""
        if "started" in message:
            process = self._processes[int(str(message["started"]))]
            process.started_pid, process.because = int(str(message["pid"])), str(message["because"])
            process.was_spare = bool(message["spare"])
        elif "spare" in message:
            self.spare_bytes = int(str(message["bytes"]))
            self._spares_ready += 1
        elif "spare_ended" in message:
            self.spares_ended += 1
        elif "early" in message:
            self._spares_ready = int(str(message["early"]))
        elif "refused" in message:
            process = self._processes.pop(int(str(message["refused"])))
            process.started_pid, process.returncode = _NOBODY, 1  # it never ran
            return str(message["why"])
        elif "ended" in message:
            pid = int(str(message["ended"]))
            process = next(process for process in self._processes.values() if process.started_pid == pid)
            del self._processes[process.number]
            process.returncode = int(str(message["code"]))
        elif "rss_bytes" in message:
            self.imported_s = float(str(message["seconds"]))
            self.rss_bytes = int(str(message["rss_bytes"]))
        return None

    def _lose(self) -> None:
        lost = list(self._processes.values())
        self._processes.clear()
        for process in lost:  # before anything below can raise
            process.started_pid = process.started_pid or _NOBODY
            process.returncode = _KILLED
        self.close()
