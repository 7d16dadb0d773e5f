"""Which snapshots may be deleted."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from trainer.contract.fence import Term
from trainer.contract.manifest import SnapshotName
from trainer.snapshot.retention import choose_deletions


def names(*steps: int) -> list[SnapshotName]:
    return [SnapshotName(step, Term(1, 1)) for step in steps]


def deleted(steps, *, keep, keep_every=None, bad=()):
    chosen = choose_deletions(
        names(*steps), keep=keep, keep_every=keep_every, is_good=lambda name: name.step not in bad
    )
    return [name.step for name in chosen]


@pytest.mark.parametrize(
    ("steps", "options", "expected"),
    [
        ((40, 30, 20, 10), {"keep": 2}, [20, 10]),
        ((40, 30), {"keep": 2}, []),
        ((), {"keep": 1}, []),
        ((40, 30, 20, 10), {"keep": 1, "keep_every": 20}, [30, 10]),
        ((40, 30, 20, 10), {"keep": 2, "bad": (40,)}, [10]),  # a damaged one does not count
        ((40, 30, 20, 10), {"keep": 1, "bad": (40, 30, 20)}, []),
        ((40, 30, 20, 10), {"keep": 2, "bad": (40, 30, 20, 10)}, []),
    ],
)
def test_the_newest_good_ones_and_every_nth_are_kept(steps, options, expected):
    assert deleted(steps, **options) == expected


@given(st.sets(st.integers(1, 60)), st.integers(1, 5), st.none() | st.integers(1, 10), st.sets(st.integers(1, 60)))
def test_the_last_good_one_is_never_deleted(steps, keep, keep_every, bad):
    order = sorted(steps, reverse=True)
    good = [step for step in order if step not in bad]
    gone = set(deleted(order, keep=keep, keep_every=keep_every, bad=bad))
    assert not gone & set(good[:keep])
    assert keep_every is None or all(step % keep_every for step in gone)
    assert len(good) < keep or all(
        step in gone or (keep_every and step % keep_every == 0) or step >= good[keep - 1] for step in order
    )


def test_nothing_is_verified_where_nothing_could_go():
    asked = []
    for keep, keep_every in ((1, 10), (1, 5)):
        choose_deletions(names(30, 20, 10), keep=keep, keep_every=keep_every, is_good=asked.append)
    assert asked == []
