"""Files in memory that outlive workers. Each rank has two for copies of its state, and one to hand its state over.

The kernel frees them when the agent and its workers have ended, however they end.
"""

from __future__ import annotations

import fcntl
import os
from contextlib import suppress

from trainer.contract import env


class MemoryFiles:
    """Empty files, which workers find by their environment. There are none where the system cannot make them."""

    def __init__(self, workers: int) -> None:
        self._files: list[list[int]] = []
        with suppress(OSError, AttributeError):  # another system than Linux
            for local_rank in range(workers):
                self._files.append([])
                for _ in range(env.COPIES + 1):
                    self._files[-1].append(_create(f"state of local rank {local_rank}"))
            self.environment = {env.MEMORY: env.render_files(os.getpid(), self._files)}
            return
        self.environment = {}

    def close(self) -> None:
        for file in (file for own in self._files for file in own):
            os.close(file)
        self._files = []


def _create(name: str) -> int:
    """Nobody can shrink the file: that would end a process that reads it."""
    file = os.memfd_create(name, os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING)
    fcntl.fcntl(file, fcntl.F_ADD_SEALS, fcntl.F_SEAL_SHRINK)
    return file
