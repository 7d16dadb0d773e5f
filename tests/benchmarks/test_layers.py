"""The benchmark that divides the time of a submission: every layer is found, and none is charged twice."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from benchmarks.control_plane import layers
from benchmarks.control_plane.layers import OUTSIDE, Stopwatch, measure_layers, render_layers
from benchmarks.control_plane.load import post
from orchestrator.store.upgrade import upgrade


def test_time_is_charged_to_the_innermost_layer(monkeypatch: pytest.MonkeyPatch) -> None:
    # Begin, enter outer, enter inner, leave inner, leave outer, take.
    moments = iter([0.0, 1.0, 3.0, 7.0, 15.0, 31.0])
    monkeypatch.setattr(layers, "perf_counter", lambda: next(moments))
    watch = Stopwatch()
    with watch.layer("outer"), watch.layer("inner"):
        pass
    assert dict(watch.take()) == {OUTSIDE: 1.0 + 16.0, "outer": 2.0 + 8.0, "inner": 4.0}


def test_every_layer_of_a_submission_takes_time(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(layers, "configure_logging", lambda **_: None)  # these change the whole process
    monkeypatch.setattr(sys, "setswitchinterval", lambda _: None)
    url = f"sqlite:///{tmp_path / 'orchestrator.db'}"
    upgrade(url)
    run = {"command": ["true"], "workdir": "/"}
    figures = measure_layers(tmp_path, url, [post("/api/v1/jobs", {"name": f"a-{n}", "run": run}) for n in range(60)])
    assert all(each["n"] == 10 and each["median_ms"] > 0 for each in figures.values()), figures
    assert render_layers("sqlite", figures)[-1][-1] == "100%"
