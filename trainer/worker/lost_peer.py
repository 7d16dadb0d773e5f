"""Recognize the loss of a peer. Needs no torch."""

from __future__ import annotations

from trainer.contract.failure import Failure, FailureKind, is_collateral


class GroupChanged(RuntimeError):
    """The agent has ordered this rank to join another generation."""


def has_lost_peer(error: BaseException) -> bool:
    """Whether the exception is the end of the group, and not this rank's own failure."""
    return isinstance(error, GroupChanged) or is_collateral(Failure(kind=FailureKind.UNKNOWN, message=str(error)))
