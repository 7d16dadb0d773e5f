"""Speed-up, efficiency and the signal of runs on several sizes."""

from __future__ import annotations

import pytest

from orchestrator.domain.accounting.scaling import MeasuredRun, Scaling, Signal, compare_runs


def make_run(ranks: int, per_s: float, **fields: object) -> MeasuredRun:
    values: dict[str, object] = {"name": f"r{ranks}", "unit": "tokens", "step_s": 1.0, **fields}
    return MeasuredRun(ranks=ranks, per_s=per_s, **values)  # type: ignore[arg-type]


def compare(*runs: MeasuredRun) -> list[Scaling]:
    return list(compare_runs(runs))


def test_the_smallest_run_is_the_base_and_the_rows_are_by_size() -> None:
    rows = compare(make_run(4, 320.0), make_run(1, 100.0), make_run(2, 190.0))
    assert [row.run.ranks for row in rows] == [1, 2, 4]
    assert [row.speed_up for row in rows] == pytest.approx([1.0, 1.9, 3.2])
    assert [row.efficiency for row in rows] == pytest.approx([1.0, 0.95, 0.8])
    assert [row.signal for row in rows] == [Signal.BASE, Signal.SCALES_WELL, Signal.SCALES_WELL]
    assert rows[1].sentence == "each rank does 95% of the work of a rank of the base."


def test_a_base_of_several_ranks_has_an_efficiency_of_one() -> None:
    small, large = compare(make_run(8, 800.0), make_run(16, 1200.0))
    assert (small.efficiency, large.efficiency) == pytest.approx((1.0, 0.75))


def test_what_grew_most_is_named() -> None:
    """1 rank: 10 ms a token, all computing. 4 ranks at half efficiency: 20 ms, of which 45% communicate."""
    base = make_run(1, 100.0, data_share=0.0, communication_share=0.0)
    row = compare(base, make_run(4, 200.0, data_share=0.05, communication_share=0.45))[1]
    assert row.signal is Signal.COMMUNICATION
    assert row.sentence == "communication without computing is 90% of the lost efficiency."
    row = compare(base, make_run(4, 200.0, data_share=0.19, communication_share=0.1))[1]
    assert row.signal is Signal.COMPUTING
    assert row.sentence == "more computing for the same work is 42% of the lost efficiency."
    row = compare(base, make_run(4, 250.0, data_share=0.19, communication_share=0.1))[1]
    assert row.signal is Signal.DATA
    assert row.sentence.startswith("waiting for data is 51%")


def test_communication_that_the_base_had_too_is_not_what_limits() -> None:
    """FSDP on two ranks communicates as much for each token as on eight."""
    base = make_run(2, 200.0, communication_share=0.4)
    row = compare(base, make_run(8, 400.0, communication_share=0.25))[1]
    assert row.signal is Signal.COMPUTING


def test_waiting_for_data_is_named_even_if_the_run_scales() -> None:
    rows = compare(make_run(1, 100.0, data_share=0.2), make_run(2, 200.0, data_share=0.3))
    assert [row.signal for row in rows] == [Signal.DATA, Signal.DATA]
    assert rows[1].sentence == "steps wait for data 30% of their time."


def test_starts_are_named_only_if_the_steps_scale() -> None:
    base = make_run(1, 100.0, launch_share=0.1)
    assert compare(base, make_run(2, 190.0, launch_share=0.6))[1].signal is Signal.LAUNCH
    assert compare(base, make_run(2, 120.0, launch_share=0.6))[1].signal is Signal.COMPUTING
    assert compare(base, make_run(2, 190.0, launch_share=0.49))[1].signal is Signal.SCALES_WELL


def test_communication_that_was_not_measured_is_not_called_computing_alone() -> None:
    row = compare(make_run(1, 100.0), make_run(2, 120.0))[1]
    assert row.signal is Signal.COMPUTING
    assert row.sentence.endswith("; it includes communication, which was not measured.")


@pytest.mark.parametrize(("base_share", "share"), [(None, 0.3), (0.3, None)])
def test_communication_that_one_run_did_not_measure_is_not_compared(
    base_share: float | None, share: float | None
) -> None:
    base = make_run(1, 100.0, communication_share=base_share)
    assert compare(base, make_run(2, 120.0, communication_share=share))[1].signal is Signal.COMPUTING


def test_superlinear_runs_scale_well() -> None:
    row = compare(make_run(1, 100.0), make_run(2, 240.0))[1]
    assert (row.signal, row.efficiency) == (Signal.SCALES_WELL, pytest.approx(1.2))


@pytest.mark.parametrize(
    "runs",
    [(), (make_run(1, 1.0), make_run(2, 1.0, unit="samples")), (make_run(1, 0.0),), (make_run(0, 1.0),)],
    ids=["none", "two units", "no throughput", "no ranks"],
)
def test_runs_that_cannot_be_compared_are_refused(runs: tuple[MeasuredRun, ...]) -> None:
    with pytest.raises(ValueError, match=r"one unit|positive"):
        compare_runs(runs)
