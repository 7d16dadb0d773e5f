"""The process that workers are forked from: it has imported torch, so that a restart need not.

The agent starts it with one end of a socket (nursery.py) and orders workers by it. It runs nothing but imports: no
tensor, no CUDA, no thread of its own. Every worker is its child and dies with it; as their subreaper (prctl(2)) it
also gets what workers leave behind, data loaders above all, and when the agent is gone it kills all of them.

Messages are JSON, one in each packet. The agent sends

    {"import": [modules], "later": [modules]}   the first at once, before any worker; the others in quiet moments
    {"start": number, "environ": {...}, "without": [names], "program": {...} | null, "because": why there is none,
     "command": [...], "local_rank": "0", "stdout": path | null, "stderr": path | null}

and gets

    {"ready": [modules], "seconds": s, "rss_bytes": n}
    {"started": number, "pid": p, "because": why it is a fresh process, "" for a fork}
    {"refused": number, "why": text}
    {"ended": pid, "code": as subprocess.Popen.returncode}
"""

from __future__ import annotations

import ctypes
import gc
import importlib
import json
import os
import select
import signal
import socket
import sys
import time
from collections import deque
from pathlib import Path
from types import TracebackType
from typing import NoReturn

from trainer.elastic import child
from trainer.elastic.files import say
from trainer.elastic.groups import keep_process_groups
from trainer.elastic.processes import adopt_orphans, end_descendants
from trainer.elastic.program import Program, find_shadowed, run_program
from trainer.elastic.stacks import offer_stacks
from trainer.elastic.title import show_command, show_place

_PR_SET_NAME = 15  # linux/prctl.h
_PACKET_BYTES = 1 << 20
_QUIET_S = 1.0  # after the last order: so long a start-up is left alone
_NAME_BYTES = 15  # prctl(2)
# A scheduler signals every process of the job, a terminal the whole foreground: when to end is the agent's decision.
_IGNORED = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGQUIT, signal.SIGUSR1, signal.SIGUSR2)


class ForkServer:
    def __init__(self, channel: socket.socket, agent: int) -> None:
        self._channel = channel
        self._agent = agent
        self._later: deque[str] = deque()
        self._workers: set[int] = set()
        self._has_failed = False  # one of the workers since there were none
        self._quiet_since = time.monotonic()
        self._wakeup, self._woken = socket.socketpair()
        self._unsafe: str | None = None

    def serve(self) -> dict[str, object] | None:
        """Serve until the agent is gone, then return None; in each forked worker, return its order."""
        self._listen_to_signals()
        while os.getppid() == self._agent:
            timeout = max(0.0, self._quiet_since + _QUIET_S - time.monotonic()) if self._later else None
            ready, _, _ = select.select([self._channel, self._woken], [], [], timeout)
            if self._woken in ready:
                self._woken.recv(4096)
                self._reap()
            if self._channel in ready:
                packet = self._channel.recv(_PACKET_BYTES)
                if not packet:
                    break
                order = self._obey(json.loads(packet))
                if order is not None:
                    return order
            elif not ready and self._later:
                self._import([self._later.popleft()])
        end_descendants(os.getpid())
        return None

    def close(self) -> None:
        """In a worker: let go of what belongs to the server."""
        signal.set_wakeup_fd(-1)
        for end in (self._channel, self._wakeup, self._woken):
            end.close()

    def _listen_to_signals(self) -> None:
        for number in _IGNORED:
            signal.signal(number, signal.SIG_IGN)
        self._wakeup.setblocking(False)
        signal.set_wakeup_fd(self._wakeup.fileno(), warn_on_full_buffer=False)
        signal.signal(signal.SIGCHLD, lambda number, frame: None)

    def _obey(self, message: dict[str, object]) -> dict[str, object] | None:
        """Carry out a message. An order for a worker comes back in that worker, and only there."""
        if "start" in message:
            self._quiet_since = time.monotonic()
            return self._start(message)
        self._later.extend(_names(message.get("later")))
        self._import(_names(message.get("import")))
        return None

    def _import(self, names: list[str]) -> None:
        began = time.monotonic()
        for name in names:
            try:
                importlib.import_module(name)
            except Exception as error:  # a worker that needs it will say so itself
                say(f"{name} cannot be preloaded: {type(error).__name__}: {error}")
        gc.collect()
        gc.freeze()  # what is imported stays: no collection in a worker touches, and thereby copies, its pages
        self._unsafe = why_unsafe()
        self._tell(ready=names, seconds=round(time.monotonic() - began, 3), rss_bytes=_rss_bytes())

    def _start(self, order: dict[str, object]) -> dict[str, object] | None:
        program = _program(order)
        because = str(order["because"]) if program is None else self._why_fresh(program)
        try:
            pid = os.fork()
        except OSError as error:
            self._tell(refused=order["start"], why=f"no process can be made: {error.strerror}")
            return None
        if pid == 0:
            return order | {"because": because}
        self._workers.add(pid)
        self._tell(started=order["start"], pid=pid, because=because)
        return None

    def _why_fresh(self, program: Program) -> str:
        if self._unsafe is not None:
            return self._unsafe
        shadowed = find_shadowed(program.folder, set(sys.modules))
        return "" if shadowed is None else f"{program.folder} has a {shadowed} of its own"

    def _reap(self) -> None:
        """Tell the ends of workers; after the last of a failed generation kill what they left, data loaders above all.

        What a worker leaves becomes this process's child at its death: having no child means that nothing is left.
        """
        try:
            while True:
                pid, status = os.waitpid(-1, os.WNOHANG)
                if pid == 0:
                    break
                if pid in self._workers:
                    self._workers.discard(pid)
                    self._has_failed |= status != 0
                    self._tell(ended=pid, code=os.waitstatus_to_exitcode(status))
        except ChildProcessError:
            return
        if self._has_failed and not self._workers:
            self._has_failed = False
            end_descendants(os.getpid())

    def _tell(self, **message: object) -> None:
        try:
            self._channel.send(json.dumps(message).encode())
        except OSError:
            return  # the agent is gone; the loop will see it


def become(order: dict[str, object], agent_server: int) -> None:
    """Turn a process just forked into the worker of its order. Returns, or raises, when the program does."""
    child.die_with_parent(agent_server)
    os.setsid()
    for number in (*_IGNORED, signal.SIGCHLD):
        signal.signal(number, signal.SIG_DFL)
    signal.signal(signal.SIGINT, signal.default_int_handler)
    _settle_environment(order)
    child.prepare_environment()
    _open_outputs(order)
    folder = child.redirect(str(order["local_rank"]))
    program = _program(order)
    command = _names(order["command"])
    if order["because"] or program is None:
        child.execute(command)
    show_command(command)
    show_place(os.environ)
    _rename(Path(program.target).name)
    if folder is not None:
        offer_stacks(folder)
    _refresh()
    keep_process_groups()
    run_program(program)


def why_unsafe() -> str | None:
    """Why nothing may be forked from this process as it is now; None when it may."""
    torch = sys.modules.get("torch")
    if torch is not None and torch.cuda.is_initialized():
        return "a preloaded module initialised CUDA"
    if any(_link(entry).startswith("/dev/nvidia") for entry in Path("/proc/self/fd").iterdir()):
        return "a preloaded module opened the GPU"
    trial = os.fork()  # BLAS libraries end their threads for a fork, and start them again when needed
    if trial == 0:
        os._exit(0)
    os.waitpid(trial, 0)
    threads = len(list(Path("/proc/self/task").iterdir()))
    return None if threads == 1 else f"a preloaded module runs {threads - 1} threads"


def _settle_environment(order: dict[str, object]) -> None:
    environ, without = order["environ"], order["without"]
    assert isinstance(environ, dict)
    assert isinstance(without, list)
    for name in without:
        os.environ.pop(str(name), None)
    os.environ.update({str(name): str(value) for name, value in environ.items()})


def _open_outputs(order: dict[str, object]) -> None:
    for descriptor, name in ((1, order["stdout"]), (2, order["stderr"])):
        if name:
            opened = os.open(str(name), os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o644)
            os.dup2(opened, descriptor)
            os.close(opened)


def _refresh() -> None:
    """What a fresh interpreter would draw or read anew. Python's own `random` does so at every fork."""
    numpy = sys.modules.get("numpy.random")
    if numpy is not None:
        numpy.seed()
    torch, threads = sys.modules.get("torch"), os.environ.get("OMP_NUM_THREADS", "")
    if torch is not None and threads.isdecimal() and int(threads) > 0:
        torch.set_num_threads(int(threads))  # OpenMP read its variable when torch was imported


def _rename(name: str) -> None:
    ctypes.CDLL(None).prctl(_PR_SET_NAME, name.encode()[:_NAME_BYTES], 0, 0, 0)


def _program(order: dict[str, object]) -> Program | None:
    fields = order["program"]
    if not isinstance(fields, dict):
        return None
    return Program(str(fields["target"]), bool(fields["is_module"]), tuple(map(str, fields["arguments"])))


def _names(value: object) -> list[str]:
    return [str(name) for name in value] if isinstance(value, list) else []


def _link(path: Path) -> str:
    try:
        return str(path.readlink())
    except OSError:
        return ""


def _rss_bytes() -> int:
    """Resident set (proc(5), statm, field 2)."""
    return int(Path("/proc/self/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")


def main(descriptor: int, agent: int) -> NoReturn:
    """Serve on the socket; in a forked worker run its program and leave as Python itself would."""
    adopt_orphans()
    show_command([sys.executable, "-m", __name__, "of", str(agent)])
    server, me = ForkServer(socket.socket(fileno=descriptor), agent), os.getpid()
    order = server.serve()
    if order is None:
        os._exit(0)
    server.close()
    try:
        become(order, me)
    except (SystemExit, KeyboardInterrupt):
        raise
    except BaseException as error:
        error.__traceback__ = _frames_of_program(error.__traceback__)
        sys.excepthook(type(error), error, error.__traceback__)
        sys.exit(1)
    sys.exit(0)


def _frames_of_program(frames: TracebackType | None) -> TracebackType | None:
    """A traceback without the frames that are ours, as if the program had been started by itself."""
    inner = frames
    while inner is not None and inner.tb_frame.f_code is not run_program.__code__:
        inner = inner.tb_next
    return frames if inner is None else inner.tb_next
