"""The cost of snapshots in the metrics of steps."""

import time
from types import SimpleNamespace

from tests.trainer.alone import train_alone
from trainer.snapshot.cadence import Cost
from trainer.snapshot.saver import Saver


def test_the_wait_for_the_previous_snapshot_is_reported(tmp_path, monkeypatch):
    """The clock only advances in `settle`: by two seconds if a snapshot is in flight."""
    now, settle = [0.0], Saver.settle

    def settle_slowly(saver):
        now[0] += 0.0 if saver._in_flight is None else 2.0
        settle(saver)

    clock = SimpleNamespace(perf_counter=lambda: now[0], monotonic=time.monotonic)
    monkeypatch.setattr("trainer.snapshot.saver.time", clock)
    monkeypatch.setattr(Saver, "settle", settle_slowly)
    metrics, _ = train_alone(tmp_path, steps=6, snapshot_interval=2)
    reported = {step: each["snapshot_s"] for step, each in metrics.items()}
    assert reported == {1: 0.0, 2: 0.0, 3: 0.0, 4: 0.0, 5: 2.0, 6: 0.0}


def test_a_snapshot_that_cannot_begin_costs_time_but_is_not_measured():
    cost = Cost()
    cost.add_stall(3.0, is_begun=True)
    cost.add_stall(1.0, is_begun=False)
    assert (cost.stall_s, cost.all_stalls_s) == (3.0, 4.0)
