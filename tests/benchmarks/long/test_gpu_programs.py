"""The programs that measure a GPU, run on the CPU with a tiny model. No time is checked."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from benchmarks.snapshot.__main__ import measure, summarize
from benchmarks.snapshot.setting import build_setting
from benchmarks.trainer.__main__ import contest
from benchmarks.trainer.work import USUAL

pytestmark = pytest.mark.timeout(400)


@pytest.mark.parametrize("strategy", ["plain", "ddp", "fsdp"])
def test_both_sides_train_in_turns_with_the_settings_of_a_gpu(strategy: str, tmp_path: Path) -> None:
    small = replace(USUAL["cuda"], device="cpu", preset="nano", seq_len=32, global_batch=2, is_compiled=False, window=3)
    score = contest(replace(small, strategy=strategy, rounds=2, turn_s=1.0, peak_tflops=1.0), tmp_path)
    for side in ("ours", "handwritten"):
        assert float(str(score[f"{side}_tokens_per_s"])) > 0
        assert 0 < float(str(score[f"{side}_mfu"])) < 1
    assert score["rounds"] == 2


def test_snapshots_with_the_settings_of_a_gpu_are_taken_and_compared(tmp_path: Path) -> None:
    setting = build_setting("ddp", "cuda", "nano", 1)
    result = measure(replace(setting, device="cpu", batch=1, seq_len=32), tmp_path)
    summary = summarize({**result, "device": "cuda"})
    assert set(summary["kinds"]) == set(setting.kinds)
    assert summary["compared"] == "ours, async"
