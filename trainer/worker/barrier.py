"""A barrier with a timeout, before work that some ranks might not reach, such as an evaluation."""

from __future__ import annotations

import time
from datetime import timedelta

import torch.distributed as dist

from trainer.errors import RankAbsent
from trainer.worker.waits import Waits


class Barrier:
    """A reusable barrier. With NCCL it makes a gloo group, which can name absent ranks. Collective."""

    def __init__(self, waits: Waits) -> None:
        self._waits = waits
        self._group = None if dist.get_backend() == "gloo" else dist.new_group(backend="gloo")

    def wait(self, purpose: str, *, timeout_s: float) -> None:
        """Wait for all ranks. Raises RankAbsent, and RuntimeError as other collectives do if a peer is lost.

        On rank 0 the message names the absent ranks.
        """
        began = time.monotonic()
        try:
            with self._waits.waiting():
                dist.monitored_barrier(self._group, timedelta(seconds=timeout_s), wait_all_ranks=True)
        except RuntimeError as error:
            cause = str(error).strip().splitlines()[0]
            if time.monotonic() - began < timeout_s:  # torch 2.13 says "in ... ms" also when a connection has ended
                raise RuntimeError(f"Connection closed by peer before {purpose}: {cause}") from error
            raise RankAbsent(f"not all ranks came to {purpose} within {timeout_s:g} s: {cause}") from error
