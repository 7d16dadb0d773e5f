"""Find the agent that an `elasticrun` keeps. No imports of the service, for tests on other versions of Python."""

from __future__ import annotations

import contextlib
import os
from pathlib import Path

from trainer.elastic.health.processes import descendants


def find_agent(keeper: int) -> int | None:
    """The pid of the agent that the process `elasticrun` keeps. None while there is none.

    The twin of a dead agent (workers/late_release.py) still shows the agent's command line. Unlike an
    agent, it leads a process group.
    """
    for process in descendants(keeper):
        with contextlib.suppress(OSError):
            is_shown = f"trainer.elastic.agent of {keeper}" in Path(f"/proc/{process.pid}/cmdline").read_text()
            if is_shown and os.getpgid(process.pid) != process.pid:
                return process.pid
    return None
