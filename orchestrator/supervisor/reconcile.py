"""The product in one loop: observe, decide, act. Read this first.

A pass looks at every job of a cluster that is not at rest: what the store says was asked and decided, what the
cluster says is there, what the run directories say training did (`observe`). From that it builds one Situation per
job, asks the policy (`domain.decide`), and carries the decision out (`act`). What may lead to another decision is
followed by the next pass at once. No decision rests on what an earlier pass remembered: a crash at any point is
followed by a pass that sees the same facts. Only who holds the cluster's lease makes passes (`lease_keeper`).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from datetime import datetime, timedelta

from orchestrator.domain.errors import BackendBusy, LeaseLost, Refused, StoreUnavailable, Unavailable
from orchestrator.domain.observation.watched import Watched
from orchestrator.domain.policy.decide import POLICY, decide
from orchestrator.domain.policy.decision import Wait
from orchestrator.domain.policy.rules.kinds import Rule
from orchestrator.domain.policy.situation import Situation
from orchestrator.domain.queueing.admission import Admission, Claimant, Limits, admit
from orchestrator.ports.clock import Clock
from orchestrator.ports.supervision import Supervised, SupervisorWriter
from orchestrator.supervisor.act import Actor
from orchestrator.supervisor.observe import Facts, Observer
from orchestrator.supervisor.repeats import Repeats

_AT_ONCE = timedelta(milliseconds=10)


@dataclass(frozen=True, slots=True, kw_only=True)
class Terms:
    """What the supervision of a cluster goes by. Times in seconds."""

    limits: Limits
    stop_timeout_s: float  # from asking an attempt to end to forcing it
    submit_timeout_s: float = 0.0  # so long after a submission nobody can tell that it did not happen
    repeat_s: float | None = None  # so long after it, it may be made again; None: not before that can be told
    policy: tuple[Rule, ...] = POLICY


@dataclass(frozen=True, slots=True, kw_only=True)
class _Outcome:
    """What came of one job's decision."""

    look_again_at: datetime | None = None
    stands_still: str | None = None  # why, where that is news


class Reconciler:
    """Supervises one cluster. Not thread-safe: one thread per cluster."""

    def __init__(
        self,
        store: SupervisorWriter,
        observer: Observer,
        actor: Actor,
        clock: Clock,
        terms: Terms,
        *,
        sweep: Callable[[], None] = lambda: None,
        repeats: Repeats | None = None,
    ) -> None:
        self._store = store
        self._observer = observer
        self._actor = actor
        self._clock = clock
        self._terms = terms
        self._sweep = sweep  # the files of deleted jobs
        self._repeats = repeats or Repeats()
        self.answered = False  # the cluster, in the last pass

    def reconcile(self) -> datetime | None:
        """One pass over the cluster, one decision for each job; returns when to look again at the latest.

        Raises StoreUnavailable, after which nothing has been lost, and LeaseLost, after which nothing may be done.
        """
        facts = self._observer.observe()
        self.answered = facts.silence is None
        admissions = self._admit(facts) if self.answered else {}
        outcomes = {each.job.id: self._decide_and_act(each, facts, admissions) for each in facts.supervised}
        news = {job_id: each.stands_still for job_id, each in outcomes.items() if each.stands_still is not None}
        if news:
            self._store.note(news, self._clock.now())
        self._sweep()
        return min((each.look_again_at for each in outcomes.values() if each.look_again_at is not None), default=None)

    def _admit(self, facts: Facts) -> Mapping[str, Admission]:
        claimants = [Claimant(each.job, each.attempt) for each in facts.supervised]
        limits = replace(self._terms.limits, slots=facts.slots)
        return admit(claimants, limits, dependencies=facts.dependencies)

    def _decide_and_act(self, supervised: Supervised, facts: Facts, admissions: Mapping[str, Admission]) -> _Outcome:
        """One job's trouble is evidence of nothing: the next pass looks again, its neighbours go on now."""
        job, attempt, seen = supervised.job, supervised.attempt, facts.observation(supervised)
        if attempt is not None and seen is None and not attempt.state.terminal:
            return _Outcome()  # it began after we looked
        situation = Situation(
            now=self._clock.now(),
            job=job,
            attempt=attempt,
            live=None if attempt is None or seen is None else Watched(attempt, seen),
            admission=admissions.get(job.id),
            stop_timeout_s=self._terms.stop_timeout_s,
            submit_timeout_s=self._terms.submit_timeout_s,
            repeat_s=self._terms.repeat_s,
            silence=facts.silence,
            exclusions=tuple(facts.exclusions) if job.spec.supervise.exclude_bad_nodes else (),
        )
        if situation.at_rest():
            return _Outcome()
        try:
            decision = decide(situation, self._terms.policy)
            self._actor.act(situation, decision, facts.exclusions)
        except (StoreUnavailable, LeaseLost):
            raise
        except BackendBusy as error:
            return _Outcome(stands_still=f"waits: {error}")
        except Exception as error:  # noqa: BLE001
            # The loop's edge for one job: a silent cluster, a full disk, no port left, or a defect of ours.
            unforeseen = not isinstance(error, _EXPECTED)
            self._repeats.warn("job left for the next pass", str(error), situation.now, exc_info=unforeseen, job=job.id)
            return _Outcome(stands_still=f"cannot go on now: {error}")
        waits = isinstance(decision.action, Wait) and decision.sentence != job.reason
        return _Outcome(
            look_again_at=situation.now + _AT_ONCE if decision.settles else decision.look_again_at,
            stands_still=decision.sentence if waits else None,
        )


_EXPECTED = (Unavailable, Refused, OSError)
