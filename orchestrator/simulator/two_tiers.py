"""The expected time of training with copies in memory and snapshots on disk, in closed form. Pure. Times in seconds.

It extends Daly's model (trainer/contract/daly.py) to two kinds of failures, both exponential. After one that memory
serves (rate lambda_m), training repeats the work since the last copy. After one that disk serves (rate lambda_d), it
repeats the work since the last snapshot. Both may occur during a copy, a snapshot or a restart, too.

A cycle is n segments, each an interval tau_m of work and the stall w_m of its copy, and then the stall w_d of a
snapshot. Let lambda = lambda_m + lambda_d, p = lambda_m / lambda, and E(t) = 1 - e^(-lambda t), the probability of a
failure within t. A restart from memory takes R_m. If a failure that memory serves interrupts it, it begins again. So it
ends in training with the probability beta = e^(-lambda R_m) / (1 - p E(R_m)), else in a restart from disk, after
alpha = E(R_m) / lambda / (1 - p E(R_m)) on average. In the same way, a segment of length s is either completed, with
the probability x(s), or ended by a failure that disk serves, after t(s) on average:

    x(s) = e^(-lambda s) / (1 - p beta E(s))
    t(s) = E(s) (1 / lambda + p alpha) / (1 - p beta E(s))

A restart from disk takes (e^(lambda R_d) - 1) / lambda, as in Daly's model, and begins a new cycle. With
s = tau_m + w_m:

    X = x(s)^n x(w_d)                                          the probability that a cycle has no failure for disk
    S = t(s) (1 + x(s) + ... + x(s)^(n-1)) + x(s)^n t(w_d)     the mean time until its end or such a failure
    T = (S + (1 - X) (e^(lambda R_d) - 1) / lambda) / X        the mean time for n tau_m of work

With lambda_m = 0 this is Daly's equation 13, for tau = n tau_m and the stall n w_m + w_d. That a Markov chain describes
several levels is of A. Moody, G. Bronevetsky, K. Mohror and B. de Supinski, "Design, modeling, and evaluation of a
scalable multi-level checkpointing system", SC 2010. The formula is derived here.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class TwoTiers:
    """Rates are failures in a second."""

    memory_rate: float
    disk_rate: float
    copy_interval_s: float
    copy_stall_s: float
    copies: int  # in a cycle, at least 1
    snapshot_stall_s: float
    memory_restart_s: float
    disk_restart_s: float

    @property
    def rate(self) -> float:
        return self.memory_rate + self.disk_rate

    def failing(self, lasts_s: float) -> float:
        """Return the probability of a failure within this time."""
        return -math.expm1(-self.rate * lasts_s)

    def pass_through(self, lasts_s: float) -> tuple[float, float]:
        """Return x and t of a segment.

        They are the probability to complete it, and the mean time until its end or a failure that disk serves.
        """
        p, fails = self.memory_rate / self.rate, self.failing(lasts_s)
        restart_fails = self.failing(self.memory_restart_s)
        beta = (1 - restart_fails) / (1 - p * restart_fails)
        alpha_s = restart_fails / self.rate / (1 - p * restart_fails)
        rest = 1 - p * beta * fails
        return (1 - fails) / rest, fails * (1 / self.rate + p * alpha_s) / rest


def two_tier_ettr(tiers: TwoTiers) -> float:
    """Return the expected share of the time that is work which counts."""
    x, segment_s = tiers.pass_through(tiers.copy_interval_s + tiers.copy_stall_s)
    x_stall, stall_s = tiers.pass_through(tiers.snapshot_stall_s)
    reached = sum(x**place for place in range(tiers.copies))
    whole = x**tiers.copies * x_stall
    until_s = segment_s * reached + x**tiers.copies * stall_s
    restart_s = math.expm1(tiers.rate * tiers.disk_restart_s) / tiers.rate
    return tiers.copies * tiers.copy_interval_s * whole / (until_s + (1 - whole) * restart_s)


def mean_restart_s(restarts_s: Sequence[tuple[float, float]], mtbf_s: float) -> float:
    """Return the one restart time that costs as much as several in Daly's model: pairs of a probability and a time.

    A failure during a restart draws its kind again. The factor e^(R/M) of one R becomes 1 / E[e^(-R/M)].
    """
    return -mtbf_s * math.log(sum(share * math.exp(-each_s / mtbf_s) for share, each_s in restarts_s))
