"""Whether an agent restarts its workers in place: pure rules over the failures of one attempt.

The agent decides without the service. If it refuses, the service may still start a new attempt.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import pairwise

from trainer.contract.failure import Failure, FailureKind, is_collateral

# A worker that never reports a step shows progress by staying up this long.
UPTIME_AS_PROGRESS_S = 60.0
_TRACEBACK_TAIL_LINES = 8
_VARIABLE = re.compile(r"0x[0-9a-fA-F]+|\d+")


@dataclass(frozen=True, kw_only=True)
class Setback:
    """One failure of the worker group, its first cause only."""

    failure: Failure
    step: int | None  # the highest step that any worker of this attempt had completed by then; None: none reported
    ran_s: float  # since the workers started after the previous setback, or first; includes changes of the group's size
    silent_s: float | None = None  # of a hang: how long it had lasted
    charged: bool = True  # False: a node was lost, and the group formed again without it

    @property
    def worked_s(self) -> float:
        return max(0.0, self.ran_s - (self.silent_s or 0.0))


@dataclass(frozen=True, kw_only=True)
class RestartDecision:
    restart: bool
    sentence: str  # for the job's owner
    repeated: bool = False  # the agent gives up because the same error occurred twice in a row


@dataclass(frozen=True, kw_only=True)
class RestartSituation:
    setbacks: Sequence[Setback]  # oldest first; the last is to be decided, a restart followed each of the others
    max_restarts: int
    refund_after_s: float = 0.0  # 0: never
    may_shrink: bool = False  # fewer nodes than before are enough

    @property
    def last(self) -> Setback:
        return self.setbacks[-1]


def decide_restart(situation: RestartSituation) -> RestartDecision:
    """Decide on the last setback. Raises IndexError if there is none."""
    for rule in RESTART_POLICY:
        decision = rule(situation)
        if decision is not None:
            return decision
    raise AssertionError("the last rule always decides")


def give_up_on_launch(s: RestartSituation) -> RestartDecision | None:
    """Another try does not create a missing file, module or command."""
    if s.last.failure.kind is not FailureKind.LAUNCH:
        return None
    return _give_up(f"a restart cannot help: {s.last.failure.message}")


def give_up_on_repetition(s: RestartSituation) -> RestartDecision | None:
    """The same error twice in a row with no step between them comes from the code or its input."""
    if len(s.setbacks) < 2 or not repeats(s.setbacks[-2], s.last):
        return None
    step = s.last.step
    if step is None:
        where = f", the second time after {s.last.worked_s:.0f} s, and no step was reported"
    else:
        where = f" at step {step + 1}, with no step beyond {step}"
    sentence = f"the same error occurred twice in a row{where}: {s.last.failure.message}"
    return RestartDecision(restart=False, sentence=sentence, repeated=True)


def form_again(s: RestartSituation) -> RestartDecision | None:
    """The loss of a peer is no failure of this replica. If no peer turns out to be lost, the restart counts."""
    if not (s.may_shrink and is_collateral(s.last.failure)) or count_restarts(s) > s.max_restarts:
        return None
    return RestartDecision(restart=True, sentence="a peer was lost; the group forms again without it")


def give_up_on_budget(s: RestartSituation) -> RestartDecision | None:
    if count_restarts(s) < s.max_restarts:
        return None
    if s.max_restarts == 0:
        return _give_up("restarts in place are off for this job")
    return _give_up(f"all {s.max_restarts} restarts in place are used up")


def restart(s: RestartSituation) -> RestartDecision | None:
    return RestartDecision(
        restart=True, sentence=f"restart {count_restarts(s) + 1} of at most {s.max_restarts} in place"
    )


# First match wins: this order is the policy.
RESTART_POLICY: tuple[Callable[[RestartSituation], RestartDecision | None], ...] = (
    give_up_on_launch,
    give_up_on_repetition,
    form_again,
    give_up_on_budget,
    restart,
)


def count_restarts(s: RestartSituation) -> int:
    """The restarts that count: for failures of workers, since the last long period of healthy progress."""
    count = 0
    for before, after in reversed(list(pairwise(s.setbacks))):
        if 0 < s.refund_after_s <= after.worked_s and _made_progress(before, after):
            break
        count += before.charged
    return count


def repeats(before: Setback, after: Setback) -> bool:
    """Whether `after` is the error of `before` again, without progress between them.

    Kills from outside and losses of a peer do not count: they say nothing about this worker.
    """
    if after.failure.kind is FailureKind.UNKNOWN or is_collateral(after.failure):
        return False
    return not _made_progress(before, after) and fingerprint(before.failure) == fingerprint(after.failure)


def fingerprint(failure: Failure) -> tuple[str, str, str]:
    """Kind, first line of the message and end of the traceback, without numbers (ranks, pids, ports, addresses)."""
    first_line = failure.message.partition("\n")[0]
    tail = "\n".join((failure.traceback or "").splitlines()[-_TRACEBACK_TAIL_LINES:])
    return failure.kind.value, _VARIABLE.sub("#", first_line), _VARIABLE.sub("#", tail)


def _made_progress(before: Setback, after: Setback) -> bool:
    if after.step is None:
        is_known = after.failure.kind is not FailureKind.HANG or after.silent_s is not None
        return is_known and after.worked_s >= UPTIME_AS_PROGRESS_S
    return before.step is None or after.step > before.step


def _give_up(sentence: str) -> RestartDecision:
    return RestartDecision(restart=False, sentence=sentence)
