"""The sudden end of several processes, as when their machine loses its power."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterable
from contextlib import suppress


def kill_at_once(pids: Iterable[int]) -> None:
    """Send SIGKILL to all of them. None can act on the end of another, in whatever order they are killed."""
    pids = list(pids)
    for number in (signal.SIGSTOP, signal.SIGKILL):
        for pid in pids:
            with suppress(ProcessLookupError):
                os.kill(pid, number)
