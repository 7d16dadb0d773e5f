"""The end of a rendezvous, as every part of it raises it."""

from __future__ import annotations

from trainer.contract.failure import Failure, FailureKind


class RendezvousFailed(Exception):
    """No group can form. `was_member`: this agent had been in one."""

    def __init__(self, message: str, *, was_member: bool = False) -> None:
        super().__init__(message)
        self.failure = Failure(kind=FailureKind.RENDEZVOUS, message=message)
        self.was_member = was_member
