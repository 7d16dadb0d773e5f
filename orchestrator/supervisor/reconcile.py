"""The product in one loop: observe, decide, act. Read this first.

A pass looks at every job of a cluster that is not at rest: what the store says was asked and decided, what the
cluster says is there, what the run directories say training did (`observe`). From that it builds one Situation per
job, asks the policy (`domain.decide`), and carries the decision out (`act`). What may lead to another decision is
followed by the next pass at once. Nothing is remembered between passes: a crash at any point is followed by a pass
that sees the same facts.
"""

from __future__ import annotations

from collections.abc import Mapping
from datetime import datetime, timedelta

import structlog

from orchestrator.domain.admission import Admission, admit
from orchestrator.domain.decide import decide
from orchestrator.domain.errors import Refused, StoreUnavailable, Unavailable
from orchestrator.domain.situation import Situation
from orchestrator.ports import Clock, Supervised, SupervisorStore
from orchestrator.supervisor.act import Actor
from orchestrator.supervisor.observe import Facts, Observer

log = structlog.get_logger()

_AT_ONCE = timedelta(milliseconds=10)


class Reconciler:
    """Supervises one cluster. Not thread-safe: one thread per cluster."""

    def __init__(
        self,
        store: SupervisorStore,
        observer: Observer,
        actor: Actor,
        clock: Clock,
        *,
        gpus_per_node: int,
        stop_timeout_s: float,
    ) -> None:
        self._store = store
        self._observer = observer
        self._actor = actor
        self._clock = clock
        self._gpus_per_node = gpus_per_node
        self._stop_timeout_s = stop_timeout_s

    def reconcile(self) -> datetime | None:
        """One pass over the cluster, one decision for each job; returns when to look again at the latest.

        Raises StoreUnavailable, after which nothing has been lost.
        """
        facts = self._observer.observe()
        jobs = [each.job for each in facts.supervised] if facts.answers else []
        admissions = admit(jobs, slots=facts.slots, gpus_per_node=self._gpus_per_node)
        looks = [self._decide_and_act(each, facts, admissions) for each in facts.supervised]
        return min((look for look in looks if look is not None), default=None)

    def _decide_and_act(
        self, supervised: Supervised, facts: Facts, admissions: Mapping[str, Admission]
    ) -> datetime | None:
        """One job's trouble is evidence of nothing: the next pass looks again, its neighbours go on now."""
        job = supervised.job
        situation = Situation(
            now=self._clock.now(),
            job=job,
            attempt=supervised.attempt,
            observation=facts.observation(supervised),
            admission=admissions.get(job.id),
            stop_timeout_s=self._stop_timeout_s,
        )
        if situation.at_rest():
            return None
        try:
            decision = decide(situation)
            self._actor.act(supervised, decision, now=situation.now)
        except StoreUnavailable:
            raise
        except Exception as error:
            # The loop's edge for one job: a silent cluster, a full disk, no port left, or a defect of ours.
            log.warning("job left for the next pass", job=job.id, exc_info=not isinstance(error, _EXPECTED))
            self._store.note(job.id, f"cannot go on now: {error}", situation.now)
            return None
        return situation.now + _AT_ONCE if decision.settles else decision.look_again_at


_EXPECTED = (Unavailable, Refused, OSError)
