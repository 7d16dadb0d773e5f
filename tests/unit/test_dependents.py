"""Which jobs need another job."""

from __future__ import annotations

import pytest

from orchestrator.domain.job.dependents import Needs, awaiting, relying_on


def needs(job_id: str, *after: str, source: str | None = None) -> Needs:
    return Needs(job_id=job_id, after=after, source=source)


def test_a_job_waits_for_those_that_after_names() -> None:
    others = [needs("c", "a"), needs("b", "x", "a")]
    assert awaiting("a", others) == "b"
    assert awaiting("aa", others) is None


@pytest.mark.parametrize(
    ("source", "relies"),
    [
        ("/runs/train-abc/snapshots", True),
        ("/runs/train-abc/snapshots/step-00000010-a1-g1", True),
        ("s3://bucket/runs/train-abc", True),
        ("train-abc", True),
        ("/runs/train-abcd/snapshots", False),
        ("/runs/xtrain-abc", False),
        ("/runs", False),
        (None, False),
    ],
)
def test_a_job_relies_on_the_job_whose_folder_its_source_is_in(source: str | None, relies: bool) -> None:
    others = [needs("b", source=source), needs("c", source="/elsewhere")]
    assert relying_on("train-abc", others) == ("b" if relies else None)


def test_a_job_does_not_rely_on_itself_and_the_first_of_several_is_named() -> None:
    itself, *others = [needs(name, source="/runs/train-abc/snapshots") for name in ("train-abc", "z", "y")]
    assert relying_on("train-abc", [itself]) is None
    assert relying_on("train-abc", [itself, *others]) == "y"
