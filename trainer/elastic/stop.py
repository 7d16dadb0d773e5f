"""How an agent learns that it shall stop: a signal, or the service's request. Standard library only."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterable
from types import FrameType

from trainer.contract.exit_record import Outcome
from trainer.contract.launch import DesiredState
from trainer.elastic.records.record import Record

# The last two are how Slurm is asked to give notice (--signal).
DEFAULT_SIGNALS = ("SIGTERM", "SIGINT", "SIGHUP", "SIGQUIT", "SIGUSR1", "SIGUSR2")


class Stopped(BaseException):
    """Raised in the main thread by the first signal; no `except Exception` on its way may take it for a failure."""

    def __init__(self, number: signal.Signals) -> None:
        super().__init__(f"stopped by {number.name}")
        self.number = number


class StopRequest:
    """The first signal is remembered and, once armed, raised in the main thread; later ones change nothing.

    Nothing is raised while torch is being imported: an import must not be cut in half.
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
        """From now on raise Stopped; at once if a signal has come already."""
        self._is_armed = True
        if self.signal is not None:
            raise Stopped(self.signal)

    def disarm(self) -> None:
        self._is_armed = False

    def request(self) -> None:
        """The service wants this agent to stop: behave as after SIGTERM. Callable from any thread, once or often."""
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
