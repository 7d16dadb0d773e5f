"""The product in one loop: observe, decide, act. Read this first.

A pass looks at every job of a cluster that is not at rest: what the store says was asked and decided, what the
cluster says is there, what the run directories say training did (`observe`). From that it builds one Situation per
job, asks the policy (`domain.decide`), and carries the decision out (`act`). What may lead to another decision is
followed by the next pass at once. No decision rests on what an earlier pass remembered: a crash at any point is
followed by a pass that sees the same facts. Only who holds the cluster's lease makes passes (`office`).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from datetime import datetime, timedelta

import structlog

from orchestrator.domain.admission import Admission, Claimant, Limits, admit
from orchestrator.domain.decide import POLICY, decide
from orchestrator.domain.decision import Wait
from orchestrator.domain.errors import BackendBusy, LeaseLost, Refused, StoreUnavailable, Unavailable
from orchestrator.domain.rules.kinds import Rule
from orchestrator.domain.situation import Situation
from orchestrator.domain.watched import Watched
from orchestrator.ports import Clock, Supervised, SupervisorStore
from orchestrator.supervisor.act import Actor
from orchestrator.supervisor.observe import Facts, Observer

log = structlog.get_logger()

_AT_ONCE = timedelta(milliseconds=10)


@dataclass(frozen=True, slots=True, kw_only=True)
class Terms:
    """What the supervision of a cluster goes by. Times in seconds."""

    limits: Limits
    stop_timeout_s: float  # from asking an attempt to end to forcing it
    submit_timeout_s: float = 0.0  # so long after a submission nobody can tell that it did not happen
    policy: tuple[Rule, ...] = POLICY


class Reconciler:
    """Supervises one cluster. Not thread-safe: one thread per cluster."""

    def __init__(self, store: SupervisorStore, observer: Observer, actor: Actor, clock: Clock, terms: Terms) -> None:
        self._store = store
        self._observer = observer
        self._actor = actor
        self._clock = clock
        self._terms = terms

    def reconcile(self) -> datetime | None:
        """One pass over the cluster, one decision for each job; returns when to look again at the latest.

        Raises StoreUnavailable, after which nothing has been lost, and LeaseLost, after which nothing may be done.
        """
        facts = self._observer.observe()
        admissions = self._admit(facts) if facts.answers else {}
        standing: dict[str, str] = {}
        looks = [self._decide_and_act(each, facts, admissions, standing) for each in facts.supervised]
        if standing:
            self._store.note(standing, self._clock.now())
        return min((look for look in looks if look is not None), default=None)

    def _admit(self, facts: Facts) -> Mapping[str, Admission]:
        claimants = [Claimant(each.job, each.attempt) for each in facts.supervised]
        limits = replace(self._terms.limits, slots=facts.slots)
        return admit(claimants, limits, dependencies=facts.dependencies)

    def _decide_and_act(
        self, supervised: Supervised, facts: Facts, admissions: Mapping[str, Admission], standing: dict[str, str]
    ) -> datetime | None:
        """One job's trouble is evidence of nothing: the next pass looks again, its neighbours go on now.

        Puts why the job stands still into `standing`, where that is news.
        """
        job, attempt, seen = supervised.job, supervised.attempt, facts.observation(supervised)
        if attempt is not None and seen is None and not attempt.state.terminal:
            return None  # it began after we looked
        situation = Situation(
            now=self._clock.now(),
            job=job,
            attempt=attempt,
            live=None if attempt is None or seen is None else Watched(attempt, seen),
            admission=admissions.get(job.id),
            stop_timeout_s=self._terms.stop_timeout_s,
            submit_timeout_s=self._terms.submit_timeout_s,
        )
        if situation.at_rest():
            return None
        try:
            decision = decide(situation, self._terms.policy)
            self._actor.act(situation, decision, facts.exclusions)
        except (StoreUnavailable, LeaseLost):
            raise
        except BackendBusy as error:
            standing[job.id] = f"waits: {error}"
            return None
        except Exception as error:
            # The loop's edge for one job: a silent cluster, a full disk, no port left, or a defect of ours.
            log.warning("job left for the next pass", job=job.id, exc_info=not isinstance(error, _EXPECTED))
            standing[job.id] = f"cannot go on now: {error}"
            return None
        if isinstance(decision.action, Wait) and decision.sentence != job.reason:
            standing[job.id] = decision.sentence
        return situation.now + _AT_ONCE if decision.settles else decision.look_again_at


_EXPECTED = (Unavailable, Refused, OSError)
