"""Let the death of a worker be seen at once, however much memory it has.

The kernel frees the memory of a killed process first. Only then does it close the process's connections and tell its
parent: tens of milliseconds for 250 MB, seconds for many gigabytes. Meanwhile the agent knows of no death, and other
ranks wait in a collective. Memory that two processes share is freed by the one that ends last. So a worker has a
*twin*: a process that shares its memory (clone(2), CLONE_VM) and takes no signals. It waits for the worker's end
(pidfd_open(2)), then 0.2 s more, and ends.

The twin runs no Python, because it would share the interpreter too. Its few calls to the C library are a chain of
contexts (makecontext(3)). docs/adr/0037-a-death-is-seen-at-once.md has the reasons.
"""

from __future__ import annotations

import ctypes
import os
import platform
import select
import signal
from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import Any

from trainer.elastic.health.devices import has_gpu

_CLONE_VM = 0x100  # linux/sched.h
_PR_SET_NAME = 15  # linux/prctl.h
_NAME = b"frees-memory"
# No cancellation point, unlike ppoll() itself: that would change the state of the worker's main thread.
_PPOLL = {"x86_64": 271}  # asm/unistd.h; other machines are not tested
_EVERY = 0xFFFFFFFF  # as the last descriptor
_STACK_BYTES = 16 << 10
_PAUSE_NS = 200_000_000  # a restart takes 0.1 to 0.2 s, and needs the cores


class _Wait(ctypes.Structure):
    """struct pollfd."""

    _fields_ = (("fd", ctypes.c_int), ("events", ctypes.c_short), ("revents", ctypes.c_short))


class _Time(ctypes.Structure):
    """struct timespec."""

    _fields_ = (("seconds", ctypes.c_long), ("nanoseconds", ctypes.c_long))


class _Context(ctypes.Structure):
    """ucontext_t of glibc: its first members, and room for the rest."""

    _fields_ = (
        ("flags", ctypes.c_ulong),
        ("link", ctypes.c_void_p),
        ("stack", ctypes.c_void_p),
        ("stack_flags", ctypes.c_int),
        ("stack_size", ctypes.c_size_t),
        ("rest", ctypes.c_char * 4096),
    )


_kept: list[object] = []  # what the twin uses, also after the interpreter's end
ctypes.pythonapi.Py_IncRef(ctypes.py_object(_kept))


def release_memory_late() -> int | None:
    """Start the twin of this process. Returns its pid, or None if there is one already or this system cannot."""
    library, poll = ctypes.CDLL(None, use_errno=True), _PPOLL.get(platform.machine())
    if poll is None or not all(hasattr(library, name) for name in ("makecontext", "close_range")):
        return None
    if library.close_range(_EVERY, _EVERY, 0) != 0:  # a kernel before 5.9, or not allowed
        return None
    if _kept or not hasattr(os, "pidfd_open") or has_gpu(os.environ):  # not tried with a GPU's driver
        return None
    try:
        myself = os.pidfd_open(os.getpid())
    except OSError:
        return None
    try:
        pid = _start_twin(library, poll, myself)
    finally:
        os.close(myself)
    if pid < 0:
        return None
    with suppress(OSError):
        os.setpgid(pid, pid)  # or the worker's process group would still exist after the worker
    return pid


def _start_twin(library: ctypes.CDLL, poll: int, worker: int) -> int:
    name, wait = ctypes.create_string_buffer(_NAME), _Wait(fd=0, events=select.POLLIN)
    pause = _Time(nanoseconds=_PAUSE_NS)
    calls = (
        (library.dup2, (worker, 0)),
        (library.close_range, (1, _EVERY, 0)),
        (library.prctl, (_PR_SET_NAME, ctypes.addressof(name), 0, 0, 0)),
        (library.syscall, (poll, ctypes.addressof(wait), 1, 0, 0, 0)),
        (library.syscall, (poll, 0, 0, ctypes.addressof(pause), 0, 0)),
        (library._exit, (0,)),
    )
    before = signal.pthread_sigmask(signal.SIG_BLOCK, signal.valid_signals())  # contexts have this mask
    try:
        contexts, stacks = _chain(library, calls)
        stack = ctypes.create_string_buffer(_STACK_BYTES)
        _kept.extend((name, wait, pause, contexts, stacks, stack))
        top = (ctypes.addressof(stack) + _STACK_BYTES) & ~15
        return int(library.clone(library.setcontext, ctypes.c_void_p(top), _CLONE_VM, ctypes.byref(contexts[0])))
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


def _chain(library: ctypes.CDLL, calls: Sequence[tuple[Callable[..., Any], Sequence[int]]]) -> tuple[Any, Any]:
    """Prepare contexts that make the calls one after the other. Returns them and their stacks."""
    contexts = (_Context * len(calls))()
    stacks = (ctypes.c_char * _STACK_BYTES * len(calls))()
    for number, (function, arguments) in enumerate(calls):
        context = contexts[number]
        library.getcontext(ctypes.byref(context))
        context.link = ctypes.addressof(contexts[number + 1]) if number + 1 < len(calls) else None
        context.stack, context.stack_size = ctypes.addressof(stacks[number]), _STACK_BYTES
        library.makecontext(ctypes.byref(context), function, len(arguments), *map(ctypes.c_long, arguments))
    return contexts, stacks
