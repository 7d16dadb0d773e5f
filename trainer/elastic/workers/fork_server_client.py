"""The agent's side of the fork server: start workers and learn how they ended."""

from __future__ import annotations

import os
import select
import signal
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from contextlib import closing, suppress
from pathlib import Path

from trainer.contract import env
from trainer.elastic.channel import Channel
from trainer.elastic.health.processes import adopt_orphans, end_descendants, reap_orphans
from trainer.elastic.workers.program import Program, parse_program
from trainer.elastic.workers.title import ROOM

_CLOSE_S = 10.0
_ROUSE_EVERY_S = 1.0
_KILLED = -signal.SIGKILL
_NOBODY = 0  # the pid of a worker that never started. To kill(2) it would mean the process group
_ROOT = Path(__file__).resolve().parents[2]
# `-c` puts the current folder first on the path, where user modules could hide others. So remove it, and add this
# package's root at the end.
_BOOTSTRAP = """\
import sys
sys.path[:] = [p for p in sys.path if p] + [sys.argv[1]]
from trainer.elastic.workers.forkserver import main
sys.path.pop()
main(int(sys.argv[2]), int(sys.argv[3]))
"""


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
            self._fork_server.rouse()
        return self.started_pid

    def poll(self) -> int | None:
        self._fork_server.listen(0.0)
        return self.returncode

    def wait(self, timeout: float | None = None) -> int:
        """Raises subprocess.TimeoutExpired."""
        deadline = None if timeout is None else time.monotonic() + timeout
        while self.poll() is None:
            left = None if deadline is None else deadline - time.monotonic()
            if left is not None and left <= 0:
                raise subprocess.TimeoutExpired("worker", timeout or 0.0)
            self._fork_server.listen(left)
        assert self.returncode is not None
        return self.returncode

    def send_signal(self, number: int) -> None:
        if self.poll() is None and self.pid != _NOBODY:  # _NOBODY: the server was lost while `pid` waited
            with suppress(ProcessLookupError):
                os.kill(self.pid, number)


class ForkServerClient:
    """One fork server and its workers. Call all methods on the main thread.

    Workers die with their server (child.py). If the server is lost, they count as killed, and the next start begins
    another server.
    """

    def __init__(self) -> None:
        self.imported_s = 0.0  # time that the server has spent on imports
        self.rss_bytes = 0  # of the server
        self.spare_bytes = 0  # private memory of the newest spare
        self._spares: dict[str, object] | None = None
        self._wanted: list[tuple[list[str], list[str]]] = []  # imports, kept for a server that replaces a lost one
        self._processes: dict[int, ForkedProcess] = {}  # by number, those that have not ended
        self._numbers = 0
        self._base: dict[str, str] = {}
        self._server: subprocess.Popen[bytes] | None = None
        self._channel: Channel | None = None

    @property
    def server_pid(self) -> int | None:
        return None if self._server is None else self._server.pid

    def prepare(self, modules: Sequence[str], later: Sequence[str] = ()) -> None:
        """Import `modules` in the server before the next worker starts, and `later` while it is idle."""
        self._wanted.append((list(modules), list(later)))
        if self._channel is None:
            self._open()
        else:
            self._send({"import": list(modules), "later": list(later)})

    def keep_spares(self, count: int, warmup: str | None) -> None:
        """Keep `count` spare workers while others run; see spares.py."""
        self._spares = {"spares": count, "warmup": warmup}
        if self._channel is not None:
            self._send(self._spares)

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
            self._open()
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

    def listen(self, timeout_s: float | None) -> None:
        """Wait up to `timeout_s` (None: forever) for messages of the server, and process all of them."""
        while self._channel is not None and select.select([self._channel], [], [], timeout_s)[0]:
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
        if self._server is not None:
            with suppress(ProcessLookupError):
                self._server.send_signal(signal.SIGCONT)

    def close(self) -> None:
        """End the server, which kills what it has started. Idempotent."""
        server, self._server = self._server, None
        if self._channel is not None:
            self._channel.close()
            self._channel = None
        if server is not None:
            if not self._numbers:  # it has started no worker, and may be in the middle of an import
                server.kill()
            try:
                server.wait(_CLOSE_S)
            except subprocess.TimeoutExpired:
                server.kill()
                server.wait()

    def _open(self) -> None:
        adopt_orphans()
        ours, theirs = Channel.pair()
        # By default torch counts devices by initializing CUDA, and then no forked process could use a device.
        self._base = {**os.environ, "PYTORCH_NVML_BASED_CUDA_CHECK": "1", env.FORK_SERVER: ROOM}
        with closing(theirs):
            command = [sys.executable, "-u", "-c", _BOOTSTRAP, str(_ROOT), str(theirs.fileno()), str(os.getpid()), ROOM]
            self._server = subprocess.Popen(command, env=self._base, pass_fds=[theirs.fileno()], start_new_session=True)
        self._channel = ours
        for modules, later in self._wanted:
            self._send({"import": modules, "later": later})
        if self._spares is not None:
            self._send(self._spares)

    def _send(self, message: Mapping[str, object]) -> None:
        assert self._channel is not None
        self._channel.send(message)

    def _take(self, message: Mapping[str, object]) -> str | None:
        """Process one message. Returns the reason if it says that a worker could not be started."""
        if "started" in message:
            process = self._processes[int(str(message["started"]))]
            process.started_pid, process.because = int(str(message["pid"])), str(message["because"])
            process.was_spare = bool(message["spare"])
        elif "spare" in message:
            self.spare_bytes = int(str(message["bytes"]))
        elif "refused" in message:
            process = self._processes.pop(int(str(message["refused"])))
            process.started_pid, process.returncode = _NOBODY, 1  # it never ran
            return str(message["why"])
        elif "ended" in message:
            pid = int(str(message["ended"]))
            process = next(process for process in self._processes.values() if process.started_pid == pid)
            del self._processes[process.number]
            process.returncode = int(str(message["code"]))
        elif "ready" in message:
            self.imported_s += float(str(message["seconds"]))
            self.rss_bytes = int(str(message["rss_bytes"]))
        return None

    def _lose(self) -> None:
        lost = list(self._processes.values())
        self._processes.clear()
        for process in lost:  # before anything below can raise
            process.started_pid = process.started_pid or _NOBODY
            process.returncode = _KILLED
        self.close()
        end_descendants(os.getpid())  # the workers died with the server; this process has adopted their orphans
        reap_orphans()
