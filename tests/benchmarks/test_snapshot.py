"""Which times of a snapshot are compared, on CPUs and on a GPU. No snapshot is taken."""

from __future__ import annotations

import json
from dataclasses import asdict
from typing import Any

import pytest

from benchmarks.snapshot.__main__ import summarize
from benchmarks.snapshot.setting import ASYNC, STAGED, Setting, build_setting

QUIET = {"until_update": [0.4, 0.4], "whole_step": [0.5, 0.5]}


def times(until_update: float, whole_step: float, beside: float = 0.0, steps: int = 0) -> dict[str, Any]:
    """The times of two equal snapshots: the first, and the one that counts."""
    return {
        "until_update": [until_update] * 2,
        "whole_step": [whole_step] * 2,
        "in_all": [3.0] * 2,
        "trained": [whole_step + beside * steps] * 2,
        "steps": [1 + steps] * 2,
    }


def make_result(device: str) -> dict[str, Any]:
    kinds = {"torch.save": times(10.4, 10.5), STAGED: times(0.5, 0.6), ASYNC: times(1.4, 1.5, 0.75, steps=4)}
    return {"strategy": "ddp", "device": device, "parameters": 8, "quiet": QUIET, "verify_s": [1.0], "times": kinds}


def test_on_cpus_the_cost_of_staging_is_compared() -> None:
    summary = summarize(make_result("cpu"))
    assert (summary["compared"], summary["measure"], summary["limit"]) == (STAGED, "stall", 5.0)
    assert summary["times_shorter"] == 100.0


def test_on_a_gpu_all_lost_time_is_compared() -> None:
    summary = summarize(make_result("cuda"))
    assert (summary["compared"], summary["measure"], summary["limit"]) == (ASYNC, "excess", 10.0)
    assert summary["times_shorter"] == 5.0


@pytest.mark.parametrize(("device", "preset", "ranks"), [("cpu", "124m", 2), ("cuda", "1b", 1)])
def test_a_setting_is_passed_to_the_ranks_unchanged(device: str, preset: str, ranks: int) -> None:
    setting = build_setting("ddp", device, None, None)
    assert (setting.preset, setting.ranks) == (preset, ranks)
    assert list(Setting(**json.loads(json.dumps(asdict(setting)))).kinds) == list(setting.kinds)
    assert {"torch.save", STAGED, ASYNC} <= set(setting.kinds)
