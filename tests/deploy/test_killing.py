"""All processes of a simulated machine end at once: none of them sees another one's end."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

from deploy.dev.killing import kill_at_once

WATCHER = """
import os, select, sys
watched = [os.pidfd_open(int(pid)) for pid in sys.argv[2:]]
print("ready", flush=True)
select.select(watched, [], [])
open(sys.argv[1], "w").close()
"""


def test_a_process_that_is_killed_last_does_not_see_that_the_others_end(tmp_path: Path) -> None:
    seen = tmp_path / "seen"
    for _ in range(3):
        sleepers = [subprocess.Popen(["sleep", "600"]) for _ in range(300)]
        pids = [each.pid for each in sleepers]
        with subprocess.Popen(
            [sys.executable, "-c", WATCHER, str(seen), *map(str, pids)], stdout=subprocess.PIPE
        ) as watcher:
            assert watcher.stdout is not None
            assert watcher.stdout.readline() == b"ready\n"
            kill_at_once([*pids, watcher.pid])
        for each in sleepers:
            each.wait(60)
        assert not seen.exists()


def test_processes_that_have_ended_are_passed_over() -> None:
    with subprocess.Popen(["true"]) as ended:
        pass
    with subprocess.Popen(["sleep", "600"]) as living:
        kill_at_once([ended.pid, living.pid])
    assert living.returncode == -9
