"""The product in one loop: observe, decide, act. Read this first.

A pass looks at every job of a cluster that is not at rest: what the store says was asked and decided, what the
cluster says is there, what the run directories say training did (`observe`). From that it builds one Situation per
job, asks the policy (`domain.decide`), and carries the decision out (`act`). A decision may lead to the next one at
once, until there is nothing to do but wait. Nothing is remembered between passes: a crash at any point is followed
by a pass that sees the same facts.
"""

from __future__ import annotations

from datetime import datetime

import structlog

from orchestrator.domain.admission import Admission, admit
from orchestrator.domain.decide import decide
from orchestrator.domain.decision import Decision, Wait
from orchestrator.domain.errors import Refused, Unavailable
from orchestrator.domain.situation import Situation
from orchestrator.ports import Clock, Supervised
from orchestrator.supervisor.act import Actor
from orchestrator.supervisor.observe import Observer

log = structlog.get_logger()

_MOST_DECISIONS = 8  # about one job in one pass: more would be a policy that goes in circles


class Reconciler:
    """Supervises one cluster. Not thread-safe: one thread per cluster."""

    def __init__(
        self, observer: Observer, actor: Actor, clock: Clock, *, gpus_per_node: int, stop_timeout_s: float
    ) -> None:
        self._observer = observer
        self._actor = actor
        self._clock = clock
        self._gpus_per_node = gpus_per_node
        self._stop_timeout_s = stop_timeout_s

    def reconcile(self) -> datetime | None:
        """One pass over the cluster; returns when to look again at the latest, if a decision said so.

        Raises StoreUnavailable, after which nothing has been lost.
        """
        seen = self._observer.observe()
        admissions = admit((each.job for each in seen.supervised), slots=seen.slots, gpus_per_node=self._gpus_per_node)
        looks = [self._settle_alone(each, admissions.get(each.job.id)) for each in seen.supervised]
        return min((look for look in looks if look is not None), default=None)

    def _settle_alone(self, supervised: Supervised, admission: Admission | None) -> datetime | None:
        """One job's trouble is evidence of nothing: the next pass looks again, its neighbours go on now."""
        try:
            return self._settle(supervised, admission)
        except Unavailable as error:
            log.warning("job left for the next pass", job=supervised.job.id, reason=str(error))
        except (OSError, Refused) as error:
            # A run directory that cannot be used, no port left: the owner reads it, and the next pass tries again.
            log.warning("job cannot go on now", job=supervised.job.id, reason=str(error))
            sentence = str(error) if isinstance(error, Refused) else f"its run directory cannot be used: {error}"
            self._actor.act(supervised, Decision(action=Wait(), sentence=sentence), now=self._clock.now())
        return None

    def _settle(self, supervised: Supervised, admission: Admission | None) -> datetime | None:
        """Decide and act until there is nothing left to do for this job; return when to look again."""
        for _ in range(_MOST_DECISIONS):
            situation = self._situation(supervised, admission)
            if situation.at_rest():
                return None
            decision = decide(situation)
            supervised = self._actor.act(supervised, decision, now=situation.now)
            if isinstance(decision.action, Wait) or decision.touches_cluster:
                return decision.look_again_at  # what follows needs a fresh look
        log.warning("the policy goes in circles", job=supervised.job.id)
        return None

    def _situation(self, supervised: Supervised, admission: Admission | None) -> Situation:
        return Situation(
            now=self._clock.now(),
            job=supervised.job,
            attempt=supervised.attempt,
            observation=self._observer.observation(supervised),
            admission=admission,
            stop_timeout_s=self._stop_timeout_s,
        )
