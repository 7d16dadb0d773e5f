"""The history of an agent's generations: failures, the decision about each, and starts. In a job it is journaled.

contract/restart_policy.py decides about restarts. Outside a job (`record` is None) restarts are counted as torchrun
counts them, and nothing is journaled.
"""

from __future__ import annotations

import json
import time
from collections.abc import Collection, Mapping
from dataclasses import asdict, dataclass, replace

from trainer.contract.exit_record import EventKind
from trainer.contract.failure import Failure, FailureKind, is_collateral, parse_failure, render_failure
from trainer.contract.restart_policy import UPTIME_AS_PROGRESS_S, RestartSituation, Setback, decide_restart
from trainer.elastic.records.record import Record
from trainer.elastic.rendezvous.formation import Formation, classify_change, describe_failure, describe_restart
from trainer.elastic.rendezvous.round_document import Ending


@dataclass(frozen=True, kw_only=True)
class Running:
    """The generation that failed. `ranks` are this agent's that end with it, `nodes` is the group's number of nodes."""

    generation: int
    ranks: Collection[int]
    nodes: int


@dataclass(frozen=True, kw_only=True)
class Processes:
    """A generation's processes on this node, by rank. `fresh` says why one is not a fork.

    `survivors` are the ranks that kept theirs, and `spares` those that got a spare worker.
    """

    pids: Mapping[int, int]
    fresh: Mapping[int, str]
    survivors: Collection[int]
    spares: Collection[int]


class History:
    """Times are of the monotonic clock, in seconds."""

    def __init__(self, record: Record | None, *, max_restarts: int, min_nodes: int) -> None:
        self.restarts = 0  # in place, after a failure
        self.failures_survived = 0  # failures that allowed a restart: TORCHELASTIC_RESTART_COUNT
        self.failure: Failure | None = None  # the last one
        self.verdict = ""  # the reason of the last decision
        self._record = record
        self._max_restarts, self._min_nodes = max_restarts, min_nodes
        self._setbacks: list[Setback] = []
        self._formed: Formation | None = None
        self._noticed_s: float | None = None  # when the reason for the next restart was noticed
        self._best_step: int | None = None
        self._started_s = float("inf")  # when the running workers started
        self._healthy_since_s = 0.0  # the first start, or the start after the last failure
        self._has_failed = False  # the workers have not started again since the last failure

    @property
    def began(self) -> bool:
        """Whether workers of this agent have run."""
        return self._formed is not None

    @property
    def unsettled(self) -> Failure | None:
        """The last failure, until the workers have started again after it."""
        return self.failure if self._has_failed else None

    def notice(self, at_s: float | None = None) -> None:
        """Note the time of a reason for a restart, by default now. Until the next start only the first call counts."""
        self._noticed_s = self._noticed_s or at_s or time.monotonic()

    def render(self) -> str:
        """All of it, for `resume` in another process of this machine."""
        past = {
            "restarts": self.restarts,
            "failures_survived": self.failures_survived,
            "failure": None if self.failure is None else render_failure(self.failure),
            "verdict": self.verdict,
            "setbacks": [{**vars(each), "failure": render_failure(each.failure)} for each in self._setbacks],
            "formed": None if self._formed is None else asdict(self._formed),
            "noticed_s": self._noticed_s,
            "best_step": self._best_step,
            "started_s": self._started_s,
            "healthy_since_s": self._healthy_since_s,
            "has_failed": self._has_failed,
        }
        return json.dumps(past)

    def resume(self, rendered: str) -> None:
        """Continue the history of an agent that has ended."""
        past = json.loads(rendered)
        self.restarts, self.failures_survived = past["restarts"], past["failures_survived"]
        self.failure = None if past["failure"] is None else parse_failure(past["failure"])
        self.verdict = past["verdict"]
        self._setbacks = [Setback(**each | {"failure": parse_failure(each["failure"])}) for each in past["setbacks"]]
        self._formed = None if past["formed"] is None else Formation(**past["formed"])
        self._noticed_s, self._best_step = past["noticed_s"], past["best_step"]
        self._started_s, self._healthy_since_s = past["started_s"], past["healthy_since_s"]
        self._has_failed = past["has_failed"]

    def end(self, *, change: str, step: int | None) -> Ending:
        """Note the end of a generation. `change` is empty after a failure; `step` is the highest ever reported.

        If a worker was killed from outside, here or on another node, the generation counts as one that lasted, because
        nothing is wrong with the program.
        """
        ran_s, self._started_s = time.monotonic() - self._started_s, float("inf")
        gained = step is not None and (self._best_step is None or step > self._best_step)
        self._best_step = step if gained else self._best_step
        failure = None if change else self.failure
        killed = failure is not None and (failure.kind is FailureKind.UNKNOWN or is_collateral(failure))
        return Ending(change=change, lasted=gained or killed or ran_s >= UPTIME_AS_PROGRESS_S)

    def judge(self, failure: Failure, ran: Running, *, step: int | None, silent_s: float | None = None) -> bool:
        """Whether the workers may restart in place.

        `step` is the highest step that any of this agent's ranks has completed. After a hang, `silent_s` is how long
        the rank had reported nothing.
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
            describe_failure(failure, collateral),
            ran.generation,
            **render_failure(failure),
            collateral_ranks=collateral,
            lost_a_peer=is_collateral(failure),
            decision=decision.sentence,
            **({} if silent_s is None else {"silent_s": round(silent_s, 3)}),
        )
        return decision.restart

    def start(self, now: Formation, processes: Processes, *, generation: int, costs: Mapping[str, object]) -> None:
        """Note the start of a generation's workers. `costs` is further evidence for the event."""
        started_s, noticed_s, self._noticed_s = time.monotonic(), self._noticed_s, None
        self._started_s = started_s
        before, self._formed = self._formed, now
        change = EventKind.RESTARTED_IN_PLACE if before is None else classify_change(before, now)
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
            sentence, evidence = describe_restart(change, before, now, generation=generation, seconds=seconds)
            self._record.journal(change, sentence, generation, **evidence)
        size = now.world_size
        self._record.journal(
            EventKind.GENERATION_STARTED,
            f"generation {generation} started with {size} worker{'s' if size != 1 else ''}",
            generation,
            world_size=size,
            number=generation,
            host=self._record.node,
            pids={str(rank): pid for rank, pid in processes.pids.items()},
            fresh={str(rank): because for rank, because in processes.fresh.items()},
            survivors=sorted(processes.survivors),
            spares=sorted(processes.spares),
            **costs,
        )
