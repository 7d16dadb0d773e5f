"""Reading processes from /proc."""

from __future__ import annotations

import os
import subprocess
import sys

from trainer.elastic.health.processes import descendants, stat_fields

CUT_NAME = """
import ctypes, sys
ctypes.CDLL(None).prctl(15, "обучение.py".encode()[:15], 0, 0, 0)  # truncated within a character
print("renamed", flush=True)
sys.stdin.read()
"""


def test_a_process_name_may_be_truncated_within_a_character() -> None:
    with subprocess.Popen([sys.executable, "-c", CUT_NAME], stdin=subprocess.PIPE, stdout=subprocess.PIPE) as process:
        try:
            assert process.stdout is not None
            process.stdout.readline()
            assert int(stat_fields(process.pid)[1]) == os.getpid()
            assert process.pid in [each.pid for each in descendants(os.getpid())]
        finally:
            process.kill()
