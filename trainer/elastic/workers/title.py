"""Make `ps` and /proc show a forked worker's own command and ranks, instead of the fork server's.

The kernel shows the memory in which a process received its arguments and environment (proc(5): cmdline, environ, stat
fields 48 to 51). That memory is writable but cannot grow, so the fork server starts with padding in both.
"""

from __future__ import annotations

import ctypes
from collections.abc import Mapping, Sequence

from trainer.contract import env
from trainer.elastic.health.processes import stat_fields

ROOM = "." * 2048  # the server's last argument, and its variable FORK_SERVER
_SHOWN = ("LOCAL_RANK", "RANK", "WORLD_SIZE", env.GENERATION)


def show_command(command: Sequence[str]) -> None:
    """Show this command line from now on, truncated to the available room."""
    start, end, _, _ = _bounds()
    text = " ".join(command).encode(errors="replace").replace(b"\0", b" ")[: end - start - 2]
    # If the last byte is not NUL, the kernel shows the memory as one text, up to the first NUL.
    _write(start, end, text, last=b".")


def show_place(environ: Mapping[str, str]) -> None:
    """Show the variables with a worker's ranks and generation."""
    _, _, start, end = _bounds()
    begin = ctypes.string_at(start, end - start).find(f"{env.FORK_SERVER}={ROOM}".encode()) if end > start else -1
    if begin >= 0:
        text = "".join(f"{name}={environ[name]}\0" for name in _SHOWN if name in environ)
        _write(start + begin, start + begin + len(ROOM), text.encode(), last=b"\0")


def _write(start: int, end: int, text: bytes, *, last: bytes) -> None:
    if end - start > len(text):
        ctypes.memmove(start, text.ljust(end - start - 1, b"\0") + last, end - start)


def _bounds() -> tuple[int, int, int, int]:
    """The addresses at which arguments and environment start and end."""
    start, end, environ_start, environ_end = map(int, stat_fields("self")[48 - 3 : 52 - 3])
    return start, end, environ_start, environ_end
