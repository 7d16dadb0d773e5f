"""Pass results of background work to rank 0 through the group's store.

No collective is involved. A thread that sends its result does not wait, and the thread that collects stops on request.
So the collectives of training are not disturbed, and a group that breaks leaves no thread behind.
"""

from __future__ import annotations

import pickle
import threading
from collections.abc import Callable

import torch.distributed as dist

from trainer.snapshot.writing import Abandoned, Part
from trainer.worker.torch_compat import store_of_the_group

_LOOK_EVERY_S = 0.02


class Mailbox:
    """The mailbox of one snapshot. Its name is the same on every rank, and unique."""

    def __init__(self, name: str) -> None:
        self._store = store_of_the_group()
        self._keys = [f"{name}/{rank}" for rank in range(dist.get_world_size())]

    def send(self, result: Part | Exception) -> None:
        """Send what this rank wrote, or why it failed."""
        self._store.set(self._keys[dist.get_rank()], pickle.dumps(result))  # type: ignore[arg-type]  # bytes will do

    def collect(self, should_continue: Callable[[], bool]) -> list[Part]:
        """On rank 0, wait for all ranks. Raises the first failure, or Abandoned when `should_continue` is False."""
        pause = threading.Event()
        while not self._store.check(self._keys):
            if not should_continue():
                raise Abandoned
            pause.wait(_LOOK_EVERY_S)  # not the store's own wait: the main thread could not use the store meanwhile
        results = [pickle.loads(self._store.get(key)) for key in self._keys]
        for key in self._keys:
            self._store.delete_key(key)
        return [_part(result) for result in results]


def _part(result: Part | Exception) -> Part:
    if isinstance(result, Exception):
        raise result
    return result
