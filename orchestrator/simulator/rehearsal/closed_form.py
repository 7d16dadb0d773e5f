"""What a rehearsal is held against: the expected run time of a job with snapshots, in closed form. Pure.

J. T. Daly, "A higher order estimate of the optimum checkpoint interval for restart dumps", Future Generation Computer
Systems 22 (2006) 303-312, equation 13: failures are exponential, and may strike during a snapshot or a restart too.
J. W. Young, "A first order approximation to the optimum checkpoint interval", Communications of the ACM 17 (1974) 530.
Times in seconds.
"""

from __future__ import annotations

import math


def young_interval_s(stall_s: float, mtbf_s: float) -> float:
    """Work between two snapshots that loses least, to first order: sqrt(2 w M)."""
    return math.sqrt(2 * stall_s * mtbf_s)


def daly_run_s(work_s: float, *, interval_s: float, stall_s: float, restart_s: float, mtbf_s: float) -> float:
    """Expected time from the first step to the last snapshot: M e^{R/M} (e^{(tau+w)/M} - 1) Ts/tau."""
    segment_s = mtbf_s * math.exp(restart_s / mtbf_s) * math.expm1((interval_s + stall_s) / mtbf_s)
    return segment_s * work_s / interval_s


def daly_ettr(*, interval_s: float, stall_s: float, restart_s: float, mtbf_s: float) -> float:
    """The share of that time which is work that was kept."""
    return 1 / daly_run_s(1, interval_s=interval_s, stall_s=stall_s, restart_s=restart_s, mtbf_s=mtbf_s)
