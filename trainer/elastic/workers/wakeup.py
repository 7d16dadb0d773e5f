"""Waiting for a child without missing a signal. Standard library only.

Python runs a signal's handler between two steps of the main thread. A signal that arrives a moment before a blocking
call, or in another thread, would have to wait for the call to end: a notice of preemption for the training's. So the
interpreter writes every signal into a pipe as it arrives (`signal.set_wakeup_fd`), and what is waited for is the pipe.
"""

from __future__ import annotations

import os
import signal
import subprocess

_BYTES = 4096


class Wakeup:
    """Wakes for every signal that has a handler of Python's, and when a child ends. One a process, in its main thread.

    Make it before the child, or the child's end may be missed.
    """

    def __init__(self) -> None:
        self._woken, waker = os.pipe()
        os.set_blocking(waker, False)
        signal.set_wakeup_fd(waker, warn_on_full_buffer=False)  # full: it wakes all the same
        signal.signal(signal.SIGCHLD, lambda number, frame: None)

    def wait(self) -> None:
        """Return after the next signal, its handler having run, or at once if one has come since the last wait."""
        os.read(self._woken, _BYTES)

    def outlast(self, child: subprocess.Popen[bytes]) -> int:
        """The child's exit code, negative for a signal, once it has ended. Handlers run, and may raise, meanwhile."""
        while (code := child.poll()) is None:
            self.wait()
        return code
