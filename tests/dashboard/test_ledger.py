"""The ledger as a bar: every device-second is in one part, and every part has an explanation."""

from __future__ import annotations

import pytest

from orchestrator.dashboard.ledger import build_ledger
from orchestrator.domain.accounting.goodput import EXPLAINED, Bin, show_bin


def test_the_parts_fill_the_bar_in_the_order_of_the_bins() -> None:
    bins = {each.value: 0.0 for each in Bin} | {"recovering": 10.0, "productive": 60.0, "queue": 30.0}
    entries = build_ledger(bins)
    assert [(entry.bin, entry.x, entry.width) for entry in entries] == [
        (Bin.QUEUE, 0, 30),
        (Bin.PRODUCTIVE, 30, 60),
        (Bin.RECOVERING, 90, 10),
    ]
    assert sum(entry.seconds for entry in entries) == pytest.approx(100)


def test_a_job_without_device_time_has_an_empty_ledger() -> None:
    assert build_ledger({each.value: 0.0 for each in Bin}) == []


def test_every_bin_has_an_explanation() -> None:
    assert set(EXPLAINED) == set(Bin)
    assert [show_bin(name) for name in ("re_done", "untold", "start_up")] == ["re-done", "not reported", "start up"]
