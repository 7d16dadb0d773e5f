"""Turn a forked process into the worker that an order of the agent describes."""

from __future__ import annotations

import atexit
import ctypes
import gc
import os
import signal
import sys
from collections.abc import Mapping
from pathlib import Path

from trainer.elastic import child
from trainer.elastic.health.stacks import offer_stacks
from trainer.elastic.workers.late_release import release_memory_late
from trainer.elastic.workers.program import Program, run_program
from trainer.elastic.workers.title import show_command, show_place

_PR_SET_NAME = 15  # linux/prctl.h
_NAME_BYTES = 15  # prctl(2)
# A scheduler signals every process of a job, and a terminal every foreground process, but only the agent decides when
# to end. The fork server and new forks block these signals, so that one for a new worker is kept until it is ready.
HELD = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGQUIT, signal.SIGUSR1, signal.SIGUSR2)


def become(order: dict[str, object], agent_server: int) -> None:
    """Turn a process just forked into the worker of its order, and run the program. Raises what the program raises."""
    child.die_with_parent(agent_server)
    os.setsid()
    for number in (*HELD, signal.SIGCHLD):
        signal.signal(number, signal.SIG_DFL)
    signal.signal(signal.SIGINT, signal.default_int_handler)
    program = None if order["because"] else program_of(order)
    blocked: set[signal.Signals] = set()
    if program is not None and program.is_bundled:
        blocked = {signal.SIGTERM}  # until it handles it (StopFlag). If it ended now, its peers would wait
    signal.pthread_sigmask(signal.SIG_UNBLOCK, set(HELD) - blocked)
    settle_environment(order)
    child.prepare_environment()
    _open_outputs(order)
    folder = child.redirect(str(order["local_rank"]))
    command = names_of(order["command"])
    if program is None:
        child.execute(command)
    show_command(command)
    show_place(os.environ)
    _rename(Path(program.target).name)
    if folder is not None:
        offer_stacks(folder)
    _refresh()
    if "torch" in sys.modules:
        from trainer.worker.torch_compat import keep_process_groups  # noqa: PLC0415  # declared lazy: imports torch

        keep_process_groups()
    release_memory_late()
    run_program(program)


def settle_environment(order: Mapping[str, object]) -> None:
    """Set and remove the variables that the order names."""
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
    """Reset the state that a new interpreter would initialize. Python's `random` reseeds itself at every fork."""
    atexit.register(gc.unfreeze)  # without it, libraries that count their objects at exit (nanobind) report leaks
    numpy = sys.modules.get("numpy.random")
    if numpy is not None:
        numpy.seed()
    torch, threads = sys.modules.get("torch"), os.environ.get("OMP_NUM_THREADS", "")
    if torch is not None and threads.isdecimal() and int(threads) > 0:
        torch.set_num_threads(int(threads))  # OpenMP read its variable when torch was imported


def _rename(name: str) -> None:
    ctypes.CDLL(None).prctl(_PR_SET_NAME, name.encode()[:_NAME_BYTES], 0, 0, 0)


def program_of(order: dict[str, object]) -> Program | None:
    fields = order["program"]
    if not isinstance(fields, dict):
        return None
    return Program(str(fields["target"]), bool(fields["is_module"]), tuple(map(str, fields["arguments"])))


def names_of(value: object) -> list[str]:
    return [str(name) for name in value] if isinstance(value, list) else []
