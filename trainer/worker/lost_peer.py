"""Recognize the loss of a peer. Needs no torch."""

from __future__ import annotations

from trainer.contract.failure import Failure, FailureKind, is_collateral


class GroupChanged(RuntimeError):
    """The agent has ordered this rank to join another generation."""


def is_end_of_group(error: BaseException) -> bool:
    """Whether the error means that the group has ended, and not that this rank itself has failed."""
    return isinstance(error, GroupChanged) or is_collateral(Failure(kind=FailureKind.UNKNOWN, message=str(error)))
