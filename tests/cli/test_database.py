"""`db` on the command line. tests/store tests the operations themselves."""

from __future__ import annotations

import json
from pathlib import Path

from tests.cli.conftest import Run


def test_a_database_is_created_and_backed_up_to_a_new_file(run: Run, tmp_path: Path) -> None:
    assert run("db", "upgrade").returncode == 0
    done = run("db", "backup", "copy.db", "--json")
    assert (done.returncode, done.stderr) == (0, "")
    assert json.loads(done.stdout)["file"] == "copy.db"
    assert run("db", "check", "--database-url", f"sqlite:///{tmp_path}/copy.db").returncode == 0
    again = run("db", "backup", "copy.db")
    assert again.returncode == 2
    assert "copy.db already exists; name a new file" in again.stderr
