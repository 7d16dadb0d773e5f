"""Recognize the loss of a peer. Needs no torch."""

from __future__ import annotations

from trainer.contract.failure import Failure, FailureKind, is_collateral


def has_lost_peer(error: BaseException) -> bool:
    """Whether the exception is the loss of a peer, and not this rank's own failure."""
    return is_collateral(Failure(kind=FailureKind.UNKNOWN, message=str(error)))
