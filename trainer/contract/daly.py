"""The expected cost of snapshots and failures, and the snapshot interval that costs least. Pure.

Failures are exponential and may occur during a snapshot or a restart, too. J. T. Daly, "A higher order estimate of the
optimum checkpoint interval for restart dumps", Future Generation Computer Systems 22 (2006) 303-312. Times in seconds.
"""

from __future__ import annotations

import math


def young_daly_s(stall_s: float, mtbf_s: float) -> float:
    """The interval that loses least, in training time between two snapshots: equation 37."""
    if stall_s >= 2 * mtbf_s:
        return mtbf_s
    ratio = stall_s / (2 * mtbf_s)
    return math.sqrt(2 * stall_s * mtbf_s) * (1 + math.sqrt(ratio) / 3 + ratio / 9) - stall_s


def daly_run_s(work_s: float, *, interval_s: float, stall_s: float, restart_s: float, mtbf_s: float) -> float:
    """Expected time from the first step to the last snapshot: equation 13, M e^{R/M} (e^{(tau+w)/M} - 1) Ts/tau."""
    segment_s = mtbf_s * math.exp(restart_s / mtbf_s) * math.expm1((interval_s + stall_s) / mtbf_s)
    return segment_s * work_s / interval_s
