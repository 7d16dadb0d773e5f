"""An array with a real service: the limit, a member that fails, and its retry."""

from __future__ import annotations

from itertools import pairwise
from pathlib import Path

import pytest

from orchestrator.client import Client
from orchestrator.domain.job.job import JobState
from orchestrator.wire.array_views import ArrayView
from tests.jobs import ended, until

pytestmark = pytest.mark.long
# The second member fails until the file `repaired` is there.
SCRIPT = "import os, sys; sys.exit(sys.argv[2] == '2' and not os.path.exists('repaired'))"


def wait(client: Client, array: ArrayView) -> list[JobState]:
    for member in array.members:
        until(client, member.job_id, ended)
    return [member.state for member in client.array(array.id).members]


def test_members_run_one_at_a_time_and_the_failed_one_is_retried(client: Client, tmp_path: Path) -> None:
    (tmp_path / "member.py").write_text(SCRIPT)
    array = client.submit_array(
        {
            "name": "numbers",
            "run": {"script": "member.py", "workdir": str(tmp_path)},
            "supervise": {"budgets": {"application": 0}},
            "sweep": {"zip": {"--number": [1, 2, 3]}, "at_once": 1},
        }
    )
    assert wait(client, array) == [JobState.SUCCEEDED, JobState.FAILED, JobState.SUCCEEDED]
    attempts = sorted(
        (attempt for member in array.members for attempt in client.attempts(member.job_id)),
        key=lambda attempt: attempt.created_at,
    )
    for before, after in pairwise(attempts):
        assert before.ended_at is not None
        assert before.ended_at <= after.created_at
    (tmp_path / "repaired").touch()
    assert not client.retry_array(array.id).ended
    assert set(wait(client, array)) == {JobState.SUCCEEDED}
