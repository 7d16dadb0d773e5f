"""A step's time in words, from what a worker measured of it: `trainer/loop/step_metrics.py` says how. Pure."""

from __future__ import annotations

from collections.abc import Mapping

_PARTS = {"compute_s": "computing", "communication_s": "communication", "data_s": "data"}


def describe_split(values: Mapping[str, float]) -> str:
    """ "computing 90%, communication 8%, data 2%": shares of `step_s`; empty where nothing of it is known."""
    step_s = values.get("step_s", 0.0)
    if not step_s > 0:
        return ""
    return ", ".join(f"{word} {values[name] / step_s:.0%}" for name, word in _PARTS.items() if name in values)
