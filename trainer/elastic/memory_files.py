"""Files in memory that outlive workers. Each rank has two for copies of its state, and one to hand its state over.

Where other nodes are in the group, each rank of one of them has two more, which mirror its copies. The kernel frees
them all when the agent and its workers have ended, however they end.
"""

from __future__ import annotations

import fcntl
import os
from collections.abc import Sequence
from contextlib import suppress

from trainer.contract import env


class MemoryFiles:
    """Empty files, which workers find by their environment. There are none where the system cannot make them."""

    def __init__(self, workers: int) -> None:
        self._files: list[list[int]] = []
        self.mirrors: list[list[int]] = []  # by local rank on the other node
        with suppress(OSError, AttributeError):  # another system than Linux
            for local_rank in range(workers):
                self._files.append([])
                for _ in range(env.COPIES + 1):
                    self._files[-1].append(_create(f"state of local rank {local_rank}"))
            return
        self.close()

    @property
    def copies(self) -> Sequence[Sequence[int]]:
        """The files for the copies of this node's ranks, by local rank."""
        return [own[: env.COPIES] for own in self._files]

    @property
    def environment(self) -> dict[str, str]:
        files = {env.MEMORY: self._files, env.MIRRORS: self.mirrors}
        return {name: env.render_files(os.getpid(), own) for name, own in files.items() if own}

    def served(self) -> list[int]:
        """The files that other nodes may read."""
        return [file for own in (*self._files, *self.mirrors) for file in own]

    def add_mirrors(self, ranks: int) -> None:
        """Create files for the copies of `ranks` ranks of another node."""
        with suppress(OSError, AttributeError):
            while self._files and len(self.mirrors) < ranks:
                name = f"mirror of local rank {len(self.mirrors)}"
                self.mirrors.append([_create(name) for _ in range(env.COPIES)])

    def close(self) -> None:
        every, self._files, self.mirrors = [*self._files, *self.mirrors], [], []
        for file in (file for own in every for file in own):
            os.close(file)


def _create(name: str) -> int:
    """Nobody can shrink the file: that would end a process that reads it."""
    file = os.memfd_create(name, os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING)
    fcntl.fcntl(file, fcntl.F_ADD_SEALS, fcntl.F_SEAL_SHRINK)
    return file
