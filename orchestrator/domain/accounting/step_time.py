"""The parts of a step's time in words. `trainer/loop/step_metrics.py` measures them. Pure."""

from __future__ import annotations

from collections.abc import Mapping

_PARTS = {"compute_s": "computing", "communication_s": "communication", "data_s": "data"}


def describe_split(values: Mapping[str, float]) -> str:
    """ "computing 90%, communication 8%, data 2%": shares of `step_s`. Empty if nothing was measured."""
    step_s = values.get("step_s", 0.0)
    if not step_s > 0:
        return ""
    return ", ".join(f"{word} {values[name] / step_s:.0%}" for name, word in _PARTS.items() if name in values)
