"""Run the agent as a child process and forward signals to it. Standard library only."""

from __future__ import annotations

import signal
import subprocess
from collections.abc import Callable, Mapping, Sequence
from types import FrameType

from trainer.elastic.records.files import say
from trainer.elastic.stop import DEFAULT_SIGNALS
from trainer.elastic.workers.wakeup import Wakeup


class Forwarder:
    """Handles signals from its construction on. `received` are those so far. Reaps orphans, as a first process must."""

    def __init__(self) -> None:
        self.received: list[int] = []
        self._agent: subprocess.Popen[bytes] | None = None
        self._wakeup = Wakeup()
        for name in DEFAULT_SIGNALS:
            signal.signal(signal.Signals[name], self._forward)

    def run(
        self,
        command: Sequence[str],
        environment: Mapping[str, str],
        workdir: str,
        preexec_fn: Callable[[], None] | None = None,
    ) -> int:
        """Run the agent to its end. Returns its exit code, negative for a signal."""
        try:
            agent = subprocess.Popen(command, env=dict(environment), cwd=workdir, preexec_fn=preexec_fn)
        except OSError as error:
            say(f"cannot start the agent: {error}")
            return 127 if isinstance(error, FileNotFoundError) else 126
        self._agent = agent
        # It arrived before the agent started. Slurm may repeat a signal, and the agent acts only on the first.
        for number in self.received[:1]:
            agent.send_signal(number)
        return self._wakeup.wait_for(agent)

    def _forward(self, number: int, frame: FrameType | None) -> None:
        self.received.append(number)
        if self._agent is not None:
            self._agent.send_signal(number)
