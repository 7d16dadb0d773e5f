"""Messages at submission about a time limit that leaves a job too little time."""

from __future__ import annotations

import pytest

from orchestrator.domain.specs.time_limit import Notice, find_limit_problem, list_limit_warnings
from tests.builders import make_spec

SLURM = Notice(before_s=60)


def judged(limit_s: float | None, notice: Notice | None = SLURM, **placement: object) -> tuple[bool, bool]:
    """Whether the limit is refused, and whether it gets a warning."""
    spec = make_spec(placement={"time_limit_s": limit_s, **placement})
    return find_limit_problem(spec, notice) is not None, bool(list_limit_warnings(spec, notice))


@pytest.mark.parametrize(
    ("limit_s", "refused", "warned"),
    [
        *((None, False, False), (20, True, True), (60, True, True), (61, False, True), (120, False, True)),
        *((121, False, False), (179, False, False), (180, False, False), (3600, False, False)),
    ],
)
def test_a_limit_within_the_notice_is_refused_and_one_below_a_start_gets_a_warning(
    limit_s: float | None, refused: bool, warned: bool
) -> None:
    """Slurm rounds up to minutes: 121 s are three."""
    assert judged(limit_s) == (refused, warned)


def test_both_messages_name_the_field_the_reason_and_a_sufficient_limit() -> None:
    problem = find_limit_problem(make_spec(placement={"time_limit_s": 60}), SLURM)
    assert problem is not None
    assert problem.pointer == "/placement/time_limit_s"
    assert problem.message.startswith("is 60 s, but the cluster tells a job to end 60 s before its limit")
    assert problem.message.endswith("use 180 s or more")
    (warning,) = list_limit_warnings(make_spec(placement={"time_limit_s": 90}), SLURM)
    assert warning.startswith("placement.time_limit_s of 120 s may end attempts before their first step")


def test_only_a_limit_of_the_spec_is_refused_and_not_the_clusters_default() -> None:
    assert judged(None, Notice(before_s=60, default_limit_s=60)) == (False, True)
    assert judged(3600, Notice(before_s=60, default_limit_s=60)) == (False, False)


def test_without_a_notice_or_with_an_option_of_sbatch_there_is_no_message() -> None:
    assert judged(60, None) == (False, False)
    assert judged(60, options={"time": "1:00:00"}) == (False, False)
