"""Lives of jobs for tests: written by hand, or drawn with random clocks."""

from __future__ import annotations

from hypothesis import strategies as st

from orchestrator.domain.accounting.life import AttemptLife, GenerationLife, Kept, Life, Rest
from tests.builders import at
from trainer.contract.failure import FailureKind


def trained(number: int, *, since: float, steps: int, step_s: float = 1.0, **fields: object) -> GenerationLife:
    kept = Kept(steps=steps, first_at=at(since + step_s), last_at=at(since + steps * step_s))
    return GenerationLife(**{"number": number, "started_at": at(since), "world_size": 2, "kept": kept, **fields})  # type: ignore[arg-type]


def attempt(
    number: int, created: float, ended: float | None, *generations: GenerationLife, **fields: object
) -> AttemptLife:
    return AttemptLife(
        **{  # type: ignore[arg-type]
            "number": number,
            "devices": 2,
            "created_at": at(created),
            "ended_at": None if ended is None else at(ended),
            "generations": generations,
            **fields,
        }
    )


MOMENTS = st.floats(-50, 2000)
OPTIONAL = st.none() | MOMENTS
CAUSES = st.none() | st.sampled_from([each.value for each in FailureKind])


@st.composite
def generations(draw: st.DrawFn) -> GenerationLife:
    first, last = sorted((draw(MOMENTS), draw(MOMENTS)))
    moments = [draw(OPTIONAL) for _ in range(3)]
    noticed, restored, failed = (None if moment is None else at(moment) for moment in moments)
    stall_s, steps = draw(st.floats(0, 100)), draw(st.integers(1, 50))
    snapshots = draw(st.integers(0, steps))
    kept = Kept(steps=steps, first_at=at(first), last_at=at(last), stall_s=stall_s, snapshots=snapshots)
    return GenerationLife(
        number=draw(st.integers(1, 9)),
        started_at=at(draw(MOMENTS)),
        world_size=draw(st.integers(0, 9)),
        noticed_at=noticed,
        restored_at=restored,
        failed_at=failed,
        failed_step=draw(st.none() | st.integers(0, 9)),
        silent_s=draw(st.sampled_from((0.0, 3.5, 1e4))),
        cause=draw(CAUSES),
        nodes=draw(st.dictionaries(st.sampled_from("abc"), st.integers(0, 4))),
        kept=draw(st.none() | st.just(kept)),
    )


@st.composite
def lives(draw: st.DrawFn) -> Life:
    attempts = tuple(
        attempt(
            number,
            draw(MOMENTS),
            draw(OPTIONAL),
            *draw(st.lists(generations(), max_size=4)),
            devices=draw(st.integers(1, 8)),
            queued=draw(st.booleans()),
            went_well=draw(st.booleans()),
            cause=draw(CAUSES),
            nodes=tuple(draw(st.sets(st.sampled_from("abc")))),
        )
        for number in range(1, draw(st.integers(0, 4)) + 1)
    )
    rests = tuple(
        Rest(at(since), None if until is None else at(until))
        for since, until in draw(st.lists(st.tuples(MOMENTS, OPTIONAL), max_size=3))
    )
    ended = draw(OPTIONAL)
    return Life(
        created_at=at(0),
        ended_at=None if ended is None else at(ended),
        devices=draw(st.integers(1, 8)),
        attempts=attempts,
        rests=rests,
    )
