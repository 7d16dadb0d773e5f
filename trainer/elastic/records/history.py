"""What became of one agent's generations: failures, what was decided about each, and starts, as the journal tells them.

The decision is contract/restart_policy.py's. Outside a job (`record` is None) restarts are counted as torchrun counts
them, and nothing is journalled.
"""

from __future__ import annotations

import time
from collections.abc import Collection, Mapping
from dataclasses import dataclass, replace

from trainer.contract.exit_record import EventKind
from trainer.contract.failure import Failure, FailureKind, is_collateral, render_failure
from trainer.contract.restart_policy import UPTIME_AS_PROGRESS_S, RestartSituation, Setback, decide_restart
from trainer.elastic.records.record import Record
from trainer.elastic.rendezvous.formation import Formation, describe_change, tell_change, tell_failure
from trainer.elastic.rendezvous.rounds import Ending


@dataclass(frozen=True, kw_only=True)
class Running:
    """What ran when a generation failed. `ranks` are those of this agent, `nodes` counts the group's."""

    generation: int
    ranks: Collection[int]
    nodes: int


class History:
    """Times are of the monotonic clock, in seconds."""

    def __init__(self, record: Record | None, *, max_restarts: int, min_nodes: int) -> None:
        self.restarts = 0  # in place after a failure
        self.failures_survived = 0  # failures after which the workers were to start again: TORCHELASTIC_RESTART_COUNT
        self.failure: Failure | None = None  # the last one
        self.verdict = ""  # why the last failure was not followed by a restart
        self._record = record
        self._max_restarts, self._min_nodes = max_restarts, min_nodes
        self._setbacks: list[Setback] = []
        self._formed: Formation | None = None
        self._noticed_s: float | None = None  # when the reason for the coming restart was seen
        self._best_step: int | None = None
        self._started_s = float("inf")  # the workers that run
        self._healthy_since_s = 0.0  # the first start, or the start after the last failure
        self._has_failed = False  # judged, and not started again yet

    @property
    def began(self) -> bool:
        """Whether workers of this agent have run."""
        return self._formed is not None

    @property
    def unsettled(self) -> Failure | None:
        """The last failure, until the workers have started again after it."""
        return self.failure if self._has_failed else None

    def notice(self) -> None:
        """There is a reason for a restart. Until the next start the first one counts."""
        self._noticed_s = self._noticed_s or time.monotonic()

    def end(self, *, change: str, step: int | None) -> Ending:
        """A generation is over. `change` is empty after a failure; `step` is the highest that was ever reported.

        If somebody killed a worker, here or on another node, the generation counts as one that lasted: nothing is wrong
        with the program.
        """
        ran_s, self._started_s = time.monotonic() - self._started_s, float("inf")
        gained = step is not None and (self._best_step is None or step > self._best_step)
        self._best_step = step if gained else self._best_step
        failure = None if change else self.failure
        killed = failure is not None and (failure.kind is FailureKind.UNKNOWN or is_collateral(failure))
        return Ending(change=change, lasted=gained or killed or ran_s >= UPTIME_AS_PROGRESS_S)

    def judge(self, failure: Failure, ran: Running, *, step: int | None, silent_s: float | None = None) -> bool:
        """Whether the workers shall start again in place.

        `step` is the highest that any of this agent's ranks had completed, `silent_s` how long the failed rank had
        reported nothing, if it hung.
        """
        self.failure = failure
        self._has_failed = True
        restart = self._decide(failure, ran, step=step, silent_s=silent_s)
        self.failures_survived += restart
        return restart

    def _decide(self, failure: Failure, ran: Running, *, step: int | None, silent_s: float | None) -> bool:
        ran_s = time.monotonic() - self._healthy_since_s
        self._setbacks.append(Setback(failure=failure, step=step, ran_s=ran_s, silent_s=silent_s))
        if self._record is None:
            return self.failures_survived < self._max_restarts
        policy = self._record.policy
        decision = decide_restart(
            RestartSituation(
                setbacks=self._setbacks,
                max_restarts=self._max_restarts,
                refund_after_s=0.0 if policy is None else policy.refund_after_s,
                may_shrink=ran.nodes > self._min_nodes,
            )
        )
        self.verdict = decision.sentence
        self.failure = replace(failure, repeated=decision.repeated)
        collateral = sorted(rank for rank in ran.ranks if rank != failure.rank)
        self._record.journal(
            EventKind.WORKER_FAILED,
            tell_failure(failure, collateral),
            ran.generation,
            **render_failure(failure),
            collateral_ranks=collateral,
            lost_a_peer=is_collateral(failure),
            decision=decision.sentence,
            **({} if silent_s is None else {"silent_s": round(silent_s, 3)}),
        )
        return decision.restart

    def start(
        self,
        now: Formation,
        *,
        generation: int,
        pids: Mapping[int, int],
        fresh: Mapping[int, str],
        spares: Collection[int],
        costs: Mapping[str, object],
    ) -> None:
        """The workers of a generation run.

        `pids` and `fresh` (why not a fork) are by rank, `spares` the ranks that were forked ahead, `costs` of all that.
        """
        started_s, noticed_s, self._noticed_s = time.monotonic(), self._noticed_s, None
        self._started_s = started_s
        before, self._formed = self._formed, now
        change = EventKind.RESTARTED_IN_PLACE if before is None else describe_change(before, now)
        self.restarts += noticed_s is not None and change is EventKind.RESTARTED_IN_PLACE and not now.because
        if self._has_failed and change is EventKind.GROUP_SHRUNK and is_collateral(self._setbacks[-1].failure):
            self._setbacks[-1] = replace(self._setbacks[-1], charged=False)
        elif self._has_failed or before is None:
            self._healthy_since_s = started_s
        self._has_failed = False
        if self._record is None:
            return
        if noticed_s is not None and before is not None:
            seconds = round(started_s - noticed_s, 4)
            sentence, evidence = tell_change(change, before, now, generation=generation, seconds=seconds)
            self._record.journal(change, sentence, generation, **evidence)
        size = now.world_size
        self._record.journal(
            EventKind.GENERATION_STARTED,
            f"generation {generation} started with {size} worker{'s' if size != 1 else ''}",
            generation,
            world_size=size,
            number=generation,
            host=self._record.process.host,
            pids={str(rank): pid for rank, pid in pids.items()},
            fresh={str(rank): because for rank, because in fresh.items()},
            spares=sorted(spares),
            **costs,
        )
