"""What a rehearsal is held against: the expected run time of a job with snapshots, in closed form. Pure.

J. W. Young, "A first order approximation to the optimum checkpoint interval", Communications of the ACM 17 (1974) 530;
Daly's model is in trainer.contract.daly. Times in seconds.
"""

from __future__ import annotations

import math

from trainer.contract.daly import daly_run_s


def young_interval_s(stall_s: float, mtbf_s: float) -> float:
    """Work between two snapshots that loses least, to first order: sqrt(2 w M)."""
    return math.sqrt(2 * stall_s * mtbf_s)


def daly_ettr(*, interval_s: float, stall_s: float, restart_s: float, mtbf_s: float) -> float:
    """The share of that time which is work that was kept."""
    return 1 / daly_run_s(1, interval_s=interval_s, stall_s=stall_s, restart_s=restart_s, mtbf_s=mtbf_s)
