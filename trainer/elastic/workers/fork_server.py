"""The keeper's side of the fork server: start it, order agents, and learn how they ended. Standard library only."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Mapping, Sequence
from contextlib import closing, suppress
from pathlib import Path

from trainer.contract import env
from trainer.elastic.channel import Channel
from trainer.elastic.health.processes import adopt_orphans, end_descendants, reap_orphans
from trainer.elastic.records.scratch import sweep_scratch
from trainer.elastic.workers.title import ROOM

_ENDS_WITHIN_S = 1.0
_ROOT = Path(__file__).resolve().parents[2]
# `-c` puts the current folder first on the path, where user modules could hide others. So remove it, and add this
# package's root at the end.
_BOOTSTRAP = """\
import sys
sys.path[:] = [p for p in sys.path if p] + [sys.argv[1]]
from trainer.elastic.workers.forkserver import main
sys.path.pop()
main(*map(int, sys.argv[2:5]))
"""
# By default torch counts devices by initializing CUDA, and then no forked process could use a device.
_OWN = {"PYTORCH_NVML_BASED_CUDA_CHECK": "1", env.FORK_SERVER: ROOM}


class ForkServer:
    """One fork server, which has imported `modules`. `results` is a descriptor that its agents inherit.

    All processes that it has started end with it.
    """

    def __init__(self, modules: Sequence[str], results: int) -> None:
        adopt_orphans()
        self._channel, theirs = Channel.pair()
        with closing(theirs):
            numbers = [str(number) for number in (theirs.fileno(), os.getpid(), results)]
            self._process = subprocess.Popen(
                [sys.executable, "-u", "-c", _BOOTSTRAP, str(_ROOT), *numbers, ROOM],
                env={**os.environ, **_OWN},
                pass_fds=[theirs.fileno(), results],
                start_new_session=True,
            )
        self.prepare(modules)

    def fileno(self) -> int:
        return self._channel.fileno()

    def prepare(self, modules: Sequence[str]) -> None:
        self._channel.send({"import": list(modules), "later": []})

    def order_agent(self, order: Mapping[str, object]) -> None:
        """Order an agent with this process's environment."""
        environ = {name: os.environ[name] for name in _OWN if name in os.environ}
        without = [name for name in _OWN if name not in os.environ]
        self._channel.send({"agent": order, "environ": environ, "without": without})

    def receive(self) -> list[dict[str, object]] | None:
        """Blocks until messages arrive. None if the server is gone: then all that it started has ended too."""
        messages = self._channel.receive()
        if messages is None:
            with suppress(subprocess.TimeoutExpired):
                self._process.wait(_ENDS_WITHIN_S)  # or `close` would be the cause of its end
            self.close()
        return messages

    @property
    def exit_code(self) -> int | None:
        return self._process.returncode

    def close(self) -> None:
        """Kill the server and all that it has started, even during an import. Idempotent."""
        self._channel.close()
        self._process.kill()
        self._process.wait()
        end_descendants(os.getpid())  # this process has adopted the orphans
        reap_orphans()
        sweep_scratch()
