"""Wait for a child without missing a signal. Standard library only.

Python runs a signal handler between two steps of the main thread. A signal that arrives just before a blocking call, or
in another thread, would be handled only after the call: a notice of preemption would wait for the end of training. So
the interpreter writes every signal to a pipe as it arrives (`signal.set_wakeup_fd`), and this module waits for the
pipe.
"""

from __future__ import annotations

import os
import signal
import subprocess

from trainer.elastic.health.processes import reap_others

_BYTES = 4096


class Wakeup:
    """Wakes up for every signal with a Python handler, and when a child ends. One per process, on its main thread.

    Create it before the child, or the child's end may be missed.
    """

    def __init__(self) -> None:
        self._woken, waker = os.pipe()
        os.set_blocking(waker, False)
        signal.set_wakeup_fd(waker, warn_on_full_buffer=False)  # a full pipe wakes too
        signal.signal(signal.SIGCHLD, lambda number, frame: None)

    def fileno(self) -> int:
        """Readable when `wait` returns at once."""
        return self._woken

    def wait(self) -> None:
        """Return after the next signal and its handler, or at once if a signal has arrived since the last wait."""
        os.read(self._woken, _BYTES)

    def wait_for(self, child: subprocess.Popen[bytes]) -> int:
        """Wait for the child and return its exit code, negative for a signal. Reap other children, such as orphans.

        Signal handlers run meanwhile, and may raise.
        """
        while (code := child.poll()) is None:
            self.wait()
            reap_others(child.pid)
        return code
