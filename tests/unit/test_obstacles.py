"""What happens next to a job that waits."""

from __future__ import annotations

import pytest

from orchestrator.domain.explanation.obstacles import tell_next
from orchestrator.domain.job.attempt import AttemptState
from tests.unit.situations import a_job, an_attempt


@pytest.mark.parametrize(
    ("state", "told"),
    [
        (AttemptState.PENDING, "The cluster starts the job once it has room."),
        (AttemptState.SUBMITTED, "Nothing to do. The job starts by itself."),
        (None, "Nothing to do. The job starts by itself."),
    ],
)
def test_a_job_without_an_obstacle_waits_for_the_cluster_only_if_it_was_submitted(
    state: AttemptState | None, told: str
) -> None:
    attempt = None if state is None else an_attempt(state=state)
    assert tell_next(a_job(reason=""), attempt).startswith(told)
