"""Stop an agent, by a signal or by the service's request. Standard library only."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterable
from types import FrameType

from trainer.contract.exit_record import Outcome
from trainer.contract.launch import DesiredState
from trainer.elastic.records.record import Record

# Slurm's --signal sends one of the last two as a notice.
DEFAULT_SIGNALS = ("SIGTERM", "SIGINT", "SIGHUP", "SIGQUIT", "SIGUSR1", "SIGUSR2")


class Stopped(BaseException):
    """Raised in the main thread by the first signal. A BaseException, so that no `except Exception` catches it."""

    def __init__(self, number: signal.Signals) -> None:
        super().__init__(f"stopped by {number.name}")
        self.number = number


class StopRequest:
    """Keeps the first signal and, once armed, raises Stopped for it in the main thread. Later signals are ignored.

    Before `arm` nothing is raised, so that a signal cannot interrupt the import of torch.
    """

    def __init__(self) -> None:
        self.signal: signal.Signals | None = None
        self.requested = False  # by the service
        self._is_armed = False

    def install(self, names: Iterable[str] = DEFAULT_SIGNALS) -> None:
        """Handle the named signals. Idempotent; only from the main thread."""
        for name in names:
            signal.signal(signal.Signals[name.strip()], self._handle)

    def arm(self) -> None:
        """Raise Stopped on the first signal from now on, or at once if it has arrived already."""
        self._is_armed = True
        if self.signal is not None:
            raise Stopped(self.signal)

    def disarm(self) -> None:
        self._is_armed = False

    def request(self) -> None:
        """Stop as after SIGTERM, because the service requests it. Thread-safe and idempotent."""
        if not self.requested:
            self.requested = True
            os.kill(os.getpid(), signal.SIGTERM)

    def outcome(self, record: Record | None) -> Outcome:
        requested = self.requested or (record is not None and record.desired().state is DesiredState.STOP)
        return Outcome.CANCELLED if requested else Outcome.PREEMPTED

    def _handle(self, number: int, frame: FrameType | None) -> None:
        if self.signal is not None:
            return
        self.signal = signal.Signals(number)
        if self._is_armed:
            raise Stopped(self.signal)
