"""Find the agent that an `elasticrun` keeps. No imports of the service, for tests on other versions of Python."""

from __future__ import annotations

import contextlib
from pathlib import Path

from trainer.elastic.health.processes import descendants


def find_agent(keeper: int) -> int | None:
    """The pid of the agent that the process `elasticrun` keeps. None while there is none."""
    for process in descendants(keeper):
        with contextlib.suppress(OSError):
            if f"trainer.elastic.agent of {keeper}" in Path(f"/proc/{process.pid}/cmdline").read_text():
                return process.pid
    return None
