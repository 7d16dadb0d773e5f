"""The error of a rendezvous."""

from __future__ import annotations

from trainer.contract.failure import Failure, FailureKind


class RendezvousFailed(Exception):
    """No group can form. `was_member`: this agent was part of a group before."""

    def __init__(self, message: str, *, was_member: bool = False) -> None:
        super().__init__(message)
        self.failure = Failure(kind=FailureKind.RENDEZVOUS, message=message)
        self.was_member = was_member
