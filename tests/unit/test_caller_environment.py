"""The suite passes whatever service its caller uses."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

TEST = """
import os

def test_nothing_of_the_caller_is_left():
    assert not [name for name in os.environ if name.startswith("ORCHESTRATOR_")]

def test_profiles_are_those_of_the_tests():
    from orchestrator.client import profiles
    assert not profiles.profiles_file().exists()
"""


def test_variables_and_profiles_of_the_caller_do_not_reach_tests(tmp_path: Path) -> None:
    profiles = tmp_path / "xdg/orchestrator/profiles.toml"
    profiles.parent.mkdir(parents=True)
    profiles.write_text("")
    (tmp_path / "test_nothing.py").write_text(TEST)
    theirs = {"ORCHESTRATOR_URL": "http://127.0.0.1:9", "ORCHESTRATOR_ROOT": "/nowhere", "ORCHESTRATOR_TOKEN": "x" * 16}
    command = [sys.executable, "-m", "pytest", "-q", "-p", "tests.conftest", "-p", "no:cacheprovider", str(tmp_path)]
    environ = {**os.environ, **theirs, "XDG_CONFIG_HOME": str(tmp_path / "xdg")}
    done = subprocess.run(command, env=environ, capture_output=True, text=True, timeout=120)
    assert "2 passed" in done.stdout, done.stdout
