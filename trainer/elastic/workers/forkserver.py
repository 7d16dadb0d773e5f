"""The fork server, from which the agent and its workers are forked. It has imported torch, so that they need not.

The keeper starts it with one end of a socket (fork_server.py) and orders an agent. The agent orders the workers over a
socket of its own (fork_server_client.py). The server only imports: it has no tensor, no CUDA context and no threads.
Agent and workers are its children and die with it. As their subreaper (prctl(2)) it also adopts their orphans, such as
data loaders. When the agent ends it kills the workers and their orphans and keeps the spares, and when the keeper is
gone it kills all.

Messages are lines of JSON (channel.py). The keeper sends

    {"import": [modules], "later": [modules]}   import the first at once; the others when idle
    {"agent": {...}, "environ": {...}, "without": [names]}   see agent_process.py

and receives

    {"agent": pid}
    {"agent_ended": pid, "code": as subprocess.Popen.returncode, "why": why it was not forked, else ""}
    {"succeeded": number of the order}   a worker has ended with 0

The agent sends

    {"spares": how many, "warmup": module | null}
    {"early": true}   make spares before the first worker starts
    {"start": number, "environ": {...}, "without": [names], "program": {...} | null, "because": why there is none,
     "command": [...], "local_rank": "0", "stdout": path | null, "stderr": path | null}

and receives

    {"seconds": spent on imports so far, "rss_bytes": n}   first of all, and after each import
    {"started": number, "pid": p, "because": why it is not a fork, else "", "spare": whether it was a spare}
    {"refused": number, "why": text}
    {"ended": pid, "code": as subprocess.Popen.returncode}
    {"spare": pid, "bytes": private memory}   the spare is ready
    {"spare_ended": pid}   it had no order yet
    {"early": how many spares are ready}
"""

from __future__ import annotations

import gc
import importlib
import json
import os
import signal
import socket
import sys
import time
import traceback
from collections import deque
from contextlib import suppress
from pathlib import Path
from types import TracebackType
from typing import NoReturn

from trainer.elastic import child
from trainer.elastic.channel import Channel
from trainer.elastic.descriptors import wait_readable
from trainer.elastic.health.processes import adopt_orphans, descendants, end_descendants
from trainer.elastic.records.files import say
from trainer.elastic.workers.forked import HELD, become, names_of, program_of
from trainer.elastic.workers.program import Program, find_shadowed, run_program
from trainer.elastic.workers.spares import Spares
from trainer.elastic.workers.title import show_command

_QUIET_S = 0.5  # idle work waits this long after the last order, so as not to slow down the start of a group


class ForkServer:
    def __init__(self, channel: Channel, keeper: int) -> None:
        self.orders: Channel | None = None  # in a forked agent: its connection to the server
        self._channel, self._keeper = channel, keeper
        self._agent = 0  # its pid; 0: there is none
        self._agent_channel: Channel | None = None
        self._imported_s = 0.0
        self._is_over = False
        self._later: deque[str] = deque()
        self._workers: dict[int, int] = {}  # the numbers of their orders, by pid
        self._is_early = False  # spares are made before the first worker starts
        self._has_failed = False  # a worker of the current generation has failed
        self._quiet_since = time.monotonic()
        self._wakeup, self._woken = socket.socketpair()
        self._unsafe: str | None = None
        self._spares = Spares()

    def serve(self) -> dict[str, object] | None:
        """Serve until the keeper is gone, then return None. In a forked process, return its order."""
        self._listen_to_signals()
        while os.getppid() == self._keeper and not self._is_over:
            ends: list[Channel | socket.socket] = [self._channel, self._woken, *self._spares.ends]
            if self._agent_channel is not None:
                ends.append(self._agent_channel)
            ready = wait_readable(ends, self._patience_s())
            for pid, size_bytes in self._spares.collect_ready().items():
                self._tell(spare=pid, bytes=size_bytes)
            if self._woken in ready:
                self._woken.recv(4096)
                self._reap()
            for channel in (self._channel, self._agent_channel):  # the agent may have ended a moment ago
                order = self._follow(channel) if channel is not None and channel in ready else None
                if order is not None:
                    return order
            if not ready and self._later:
                self._import([self._later.popleft()])
            elif not ready:
                order = self._fork_spare()
                if order is not None:
                    return order
        end_descendants(os.getpid())
        self._spares.sweep()
        return None

    def _follow(self, channel: Channel) -> dict[str, object] | None:
        """Carry out the messages of keeper or agent. In a forked process, return its order."""
        messages = channel.receive()
        if messages is None and channel is self._channel:
            self._is_over = True
        elif messages is None:
            self._drop_agent_channel()
        for message in messages or ():
            order = self._handle(message)
            if order is not None:
                return order
        return None

    def _patience_s(self) -> float | None:
        """How long to wait for a message before idle work. None: there is no idle work."""
        wants_spares = (self._workers or self._is_early) and self._spares.has_work and self._unsafe is None
        is_idle = not self._later and not wants_spares
        return None if is_idle else max(0.0, self._quiet_since + _QUIET_S - time.monotonic())

    def _fork_spare(self) -> dict[str, object] | None:
        try:
            order = self._spares.fork_one()
        except OSError as error:
            self._spares.wanted = 0
            say(f"restarts will be slower, because a spare worker cannot be started: {error}")
            return None
        if order is not None:
            self.close()
        return order

    def close(self) -> None:
        """In a forked process, close what belongs to the server."""
        signal.set_wakeup_fd(-1)
        for end in (self._channel, self._wakeup, self._woken):
            end.close()
        self._drop_agent_channel()
        self._spares.close()

    def _drop_agent_channel(self) -> None:
        if self._agent_channel is not None:
            self._agent_channel.close()
            self._agent_channel = None

    def _listen_to_signals(self) -> None:
        signal.pthread_sigmask(signal.SIG_BLOCK, HELD)
        self._wakeup.setblocking(False)
        signal.set_wakeup_fd(self._wakeup.fileno(), warn_on_full_buffer=False)
        signal.signal(signal.SIGCHLD, lambda number, frame: None)

    def _handle(self, message: dict[str, object]) -> dict[str, object] | None:
        """Carry out a message. Returns an order in the process that was forked for it, and None in the server."""
        self._quiet_since = time.monotonic()
        if "agent" in message:
            return self._start_agent(message)
        if "early" in message:
            self._is_early = True
            self._tell(early=self._spares.count)
            return None
        if "start" in message:
            self._is_early = False
            self._spares.pause()
            return self._start(message)
        if "spares" in message:
            self._spares.wanted = int(str(message["spares"]))
            self._spares.warmup = str(message["warmup"]) if message["warmup"] else None
            return None
        self._later.extend(names_of(message.get("later")))
        self._import(names_of(message.get("import")))
        return None

    def _start_agent(self, order: dict[str, object]) -> dict[str, object] | None:
        ours, theirs = Channel.pair()
        try:
            pid = os.fork()
        except OSError as error:
            ours.close()
            theirs.close()
            self._channel.send({"agent_ended": 0, "code": 1, "why": f"cannot be forked: {error.strerror}"})
            return None
        if pid == 0:
            ours.close()
            self.orders = theirs
            return order
        theirs.close()
        self._agent, self._agent_channel = pid, ours
        self._channel.send({"agent": pid})
        self._tell_imported()
        return None

    def _import(self, names: list[str]) -> None:
        if all(name in sys.modules for name in names):
            return
        began = time.monotonic()
        for name in names:
            try:
                importlib.import_module(name)
            except (Exception, SystemExit) as error:  # noqa: BLE001  # a worker that needs it will report the error
                say(f"{name} cannot be preloaded: {type(error).__name__}: {error}")
        gc.collect()
        gc.freeze()  # or the garbage collector in a worker would write to, and so copy, the shared pages
        self._unsafe = why_unsafe()
        self._imported_s += time.monotonic() - began
        self._tell_imported()

    def _tell_imported(self) -> None:
        self._tell(seconds=round(self._imported_s, 3), rss_bytes=_rss_bytes())

    def _start(self, order: dict[str, object]) -> dict[str, object] | None:
        program = program_of(order)
        because = str(order["because"]) if program is None else self._why_fresh(program)
        order = order | {"because": because}
        pid = None if because else self._spares.give(order)
        is_spare = pid is not None
        if pid is None:
            try:
                pid = os.fork()
            except OSError as error:
                self._tell(refused=order["start"], why=f"cannot fork a worker: {error.strerror}")
                return None
            if pid == 0:
                return order
        self._workers[pid] = int(str(order["start"]))
        self._tell(started=order["start"], pid=pid, because=because, spare=is_spare)
        return None

    def _why_fresh(self, program: Program) -> str:
        if self._unsafe is not None:
            return self._unsafe
        shadowed = find_shadowed(program.folder, sys.modules)
        return "" if shadowed is None else f"{program.folder} has a {shadowed} of its own"

    def _reap(self) -> None:
        """Report the ends of agent and workers, and kill the orphans of workers that failed, such as data loaders.

        Orphans have inherited the sockets of the group: until they end, its other ranks do not notice the failure.
        After the last worker of a failed generation all orphans are killed. They become children of this process, so
        without children there is nothing left to kill.
        """
        failed: set[int] = set()  # those that left something running
        agent_ended: int | None = None
        try:
            while True:
                pid, status = os.waitpid(-1, os.WNOHANG)
                if pid == 0:
                    break
                if pid in self._workers:
                    self._report_end(pid, status)
                    if status != 0 and _has_members(pid):
                        failed.add(pid)
                elif pid == self._agent:
                    agent_ended = os.waitstatus_to_exitcode(status)
                if self._spares.forget(pid):
                    self._tell(spare_ended=pid)
        except ChildProcessError:
            pass
        if agent_ended is not None:
            self._follow_agent(agent_ended)
            return
        if failed:
            end_descendants(os.getpid(), lambda process: process.session in failed)
        if self._has_failed and not self._workers:
            self._has_failed = False
            self._end_workers()

    def _report_end(self, pid: int, status: int) -> None:
        """Report the end of a worker to the agent, and a success to the keeper too, because the agent may die."""
        number = self._workers.pop(pid)
        self._has_failed |= status != 0
        if status == 0:
            self._channel.send({"succeeded": number})
        self._tell(ended=pid, code=os.waitstatus_to_exitcode(status))

    def _follow_agent(self, code: int) -> None:
        """End the workers of an agent that has ended.

        The keeper may order another one. If this process must not fork, it ends too, and the keeper starts a new one.
        """
        pid, self._agent = self._agent, 0
        self._drop_agent_channel()
        self._end_workers()
        self._workers.clear()
        self._has_failed = False
        self._channel.send({"agent_ended": pid, "code": code, "why": ""})
        self._is_over = self._unsafe is not None

    def _end_workers(self) -> None:
        """Kill the workers and what they have left behind."""
        kept = self._spares.pids
        if self._agent:
            kept |= {self._agent, *(process.pid for process in descendants(self._agent))}
        end_descendants(os.getpid(), lambda process: process.pid not in kept)

    def _tell(self, **message: object) -> None:
        """Tell the agent."""
        if self._agent_channel is not None:
            self._agent_channel.send(message)


def _has_members(group: int) -> bool:
    """Whether a process group has processes. Its number is not used again as long as it has."""
    try:
        os.killpg(group, 0)
    except OSError:
        return False
    return True


def why_unsafe() -> str | None:
    """Why this process must not fork now. None if it may."""
    cuda = sys.modules.get("torch.cuda")
    if cuda is not None and cuda.is_initialized():
        return "a preloaded module initialized CUDA"
    if any(_link(entry).startswith("/dev/nvidia") for entry in Path("/proc/self/fd").iterdir()):
        return "a preloaded module opened the GPU"
    trial = os.fork()  # BLAS libraries stop their threads for a fork, so count threads after one
    if trial == 0:
        os._exit(0)
    os.waitpid(trial, 0)
    threads = len(list(Path("/proc/self/task").iterdir()))
    return None if threads == 1 else f"a preloaded module runs {threads - 1} threads"


def _link(path: Path) -> str:
    try:
        return str(path.readlink())
    except OSError:
        return ""


def _rss_bytes() -> int:
    """Resident set (proc(5), statm, field 2)."""
    return int(Path("/proc/self/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")


def main(descriptor: int, keeper: int, results: int) -> NoReturn:
    """Serve on the socket. In a forked worker, run its program and exit as Python would."""
    child.die_with_parent(keeper, signal.SIGCONT)  # even if it is stopped, it then ends what it has started
    adopt_orphans()
    show_command([sys.executable, "-m", __name__, "of", str(keeper)])
    run(ForkServer(Channel(socket.socket(fileno=descriptor)), keeper), keeper, results)


def run(server: ForkServer, keeper: int, results: int) -> NoReturn:
    me, order = os.getpid(), server.serve()
    if order is None:
        os._exit(0)
    server.close()
    if server.orders is not None:
        from trainer.elastic.agent_process import run_as_agent  # noqa: PLC0415  # declared lazy: not for workers

        run_as_agent(order, server=me, channel=server.orders, keeper=keeper, results=results)
    os.close(results)
    try:
        become(order, me)
    except (SystemExit, KeyboardInterrupt):
        raise
    except BaseException as error:  # noqa: BLE001  # the program's edge: reported as Python does
        error.__traceback__ = _frames_of_program(error.__traceback__)
        sys.excepthook(type(error), error, error.__traceback__)
        _leave_error_file(error)
        sys.exit(1)
    sys.exit(0)


def _leave_error_file(error: BaseException) -> None:
    """Write the error file as torch's @record does (elastic.multiprocessing.errors), unless the program has."""
    path = Path(os.environ.get("TORCHELASTIC_ERROR_FILE", ""))
    if path == Path() or path.exists():
        return
    text = "".join(traceback.format_exception(error))
    extra = {"py_callstack": text, "timestamp": str(int(time.time()))}
    document = {"message": {"message": f"{type(error).__name__}: {error}", "extraInfo": extra}}
    with suppress(OSError):  # the exit code still shows the failure
        path.write_text(json.dumps(document))


def _frames_of_program(frames: TracebackType | None) -> TracebackType | None:
    """The traceback without this package's frames, as if Python had run the program."""
    inner = frames
    while inner is not None and inner.tb_frame.f_code is not run_program.__code__:
        inner = inner.tb_next
    return frames if inner is None else inner.tb_next
