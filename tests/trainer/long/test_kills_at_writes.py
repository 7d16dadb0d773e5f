"""A real kill at every write of a snapshot."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.trainer.harness import ROOT


@pytest.mark.timeout(400)
def test_a_kill_at_any_write_costs_no_more_than_the_snapshot_being_written(tmp_path):
    entry = str(Path(__file__).with_name("crash_points_entry.py"))
    variables = {**os.environ, "OMP_NUM_THREADS": "1", "PYTHONPATH": str(ROOT), "TMPDIR": str(tmp_path)}
    done = subprocess.run([sys.executable, entry], env=variables, capture_output=True, text=True, timeout=380)
    assert done.returncode == 0, done.stderr
    plays = json.loads(done.stdout)
    assert len(plays) > 15, "each write of the files, of the commit, and of the deletion"
    for play in plays:
        assert play["killed"], play
        assert play["restored"] == max(play["committed"]) >= max(play["reported"]), play
        assert play["left"] == len(play["committed"]), play
    assert {play["restored"] for play in plays} == {1, 2}
