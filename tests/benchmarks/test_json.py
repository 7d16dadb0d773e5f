"""What programs may rely on: every benchmark takes --json, and `recovery` tells of each launcher in the same words."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from benchmarks.recovery.__main__ import Score
from benchmarks.recovery.split import Split
from benchmarks.report.catalogue import BENCHMARKS as IN_MAKE_BENCH

ROOT = Path(__file__).parents[2]
_NOT_ITSELF = {"__main__.py", "recovery.py", "yardstick.py"}  # all of them, another name of one, the machine's measure
BENCHMARKS = sorted(
    [
        *(ROOT / "benchmarks").glob("*/__main__.py"),
        *(file for file in (ROOT / "benchmarks").glob("*.py") if file.name not in _NOT_ITSELF),
    ]
)
KEYS = ["kills", "recovered", "p50_s", "p95_s", "p99_s", "steps_redone"]


@pytest.mark.parametrize("file", BENCHMARKS, ids=str)
def test_every_benchmark_takes_json(file: Path) -> None:
    """By its text: to start each of them would take as long as all other tests of this folder."""
    text = file.read_text()
    assert text.count('add_argument("--json"') == 1
    assert "json.dumps(" in text


def test_make_bench_runs_every_benchmark() -> None:
    names = [file.parent.name if file.name == "__main__.py" else file.stem for file in BENCHMARKS]
    assert sorted(names) == sorted({benchmark.program for benchmark in IN_MAKE_BENCH})


def test_the_file_is_the_module() -> None:
    said = subprocess.check_output([sys.executable, ROOT / "benchmarks/recovery.py", "--help"], text=True, cwd="/")
    for flag in ("--kills", "--json", "--strategy", "--script"):
        assert flag in said


def test_a_score_is_told_in_seconds_and_steps() -> None:
    score = Score("ours", "script", kills=4, recovered_s=[0.4, 0.1, 0.2], steps_redone=[3, 4, 6])
    document = score.document()
    assert list(document) == KEYS
    assert document == {
        "kills": 4,
        "recovered": 3,
        "p50_s": 0.2,
        "p95_s": 0.4,
        "p99_s": 0.4,
        "steps_redone": 4.3,
    }


def test_where_the_time_went_is_told_where_it_is_known() -> None:
    parts = {"process_s": 0.1, "verify_s": 0.1, "device_s": 0.5, "load_s": 0.1, "first_step_s": 0.1}
    splits = [Split(notice_s=None, **parts), Split(notice_s=0.2, **parts), Split(notice_s=0.4, **parts)]
    score = Score("ours", "trainer-ddp", kills=3, recovered_s=[1.0, 1.1, 1.2], steps_redone=[1, 1, 1], splits=splits)
    assert list(score.document()) == [*KEYS, "split"]
    assert score.document()["split"] == {"kills": 3, "notice_s": 0.3, **parts}
