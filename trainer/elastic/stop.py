"""How an agent learns that it shall stop: a signal, or the service's wish. Standard library only."""

from __future__ import annotations

import os
import signal
from collections.abc import Callable, Iterable
from types import FrameType

from trainer.contract.exit_record import Outcome
from trainer.contract.launch import DesiredState
from trainer.elastic.record import Record

# The last two are how Slurm is asked to give notice (--signal).
DEFAULT_SIGNALS = ("SIGTERM", "SIGINT", "SIGHUP", "SIGQUIT", "SIGUSR1", "SIGUSR2")


class StopRequest:
    """The first signal is remembered and, once armed, raised in the main thread; later ones change nothing.

    Nothing is raised while torch is being imported: an import must not be cut in half.
    """

    def __init__(self) -> None:
        self.signal: signal.Signals | None = None
        self.wished = False  # by the service
        self._raise: Callable[[signal.Signals], BaseException] | None = None

    def install(self, names: Iterable[str] = DEFAULT_SIGNALS) -> None:
        """Handle the named signals. Idempotent; only from the main thread."""
        for name in names:
            signal.signal(signal.Signals[name.strip()], self._handle)

    def arm(self, build: Callable[[signal.Signals], BaseException]) -> None:
        """From now on raise what `build` makes; at once if the signal has come already."""
        self._raise = build
        if self.signal is not None:
            raise build(self.signal)

    def disarm(self) -> None:
        self._raise = None

    def wish(self) -> None:
        """The service wants this agent to stop: behave as after SIGTERM. Callable from any thread, once or often."""
        if not self.wished:
            self.wished = True
            os.kill(os.getpid(), signal.SIGTERM)

    def outcome(self, record: Record | None) -> Outcome:
        wished = self.wished or (record is not None and record.desired().state is DesiredState.STOP)
        return Outcome.CANCELLED if wished else Outcome.PREEMPTED

    def _handle(self, number: int, frame: FrameType | None) -> None:
        if self.signal is not None:
            return
        self.signal = signal.Signals(number)
        if self._raise is not None:
            raise self._raise(self.signal)
