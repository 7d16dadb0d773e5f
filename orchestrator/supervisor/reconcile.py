"""The product in one loop: observe, decide, act. Read this first.

A pass handles every job of one cluster that is not at rest:

1. Observe: read requests and earlier decisions from the store, what runs from the cluster, and the progress of training
   from the run directories (`observe`).
2. Decide: build one Situation for each job and ask the policy (`domain.policy.decide`).
3. Act: carry out each decision (`act`).

No decision depends on the memory of earlier passes. After a crash at any point, the next pass sees the same facts and
continues. Only the holder of the cluster's lease runs passes (`lease_keeper`); `loop` says when.
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
_EXPECTED = (Unavailable, Refused, OSError)


@dataclass(frozen=True, slots=True, kw_only=True)
class PassSettings:
    """Settings of the passes over a cluster. Times are in seconds."""

    limits: Limits
    stop_timeout_s: float  # how long an attempt may take to stop before it is killed
    submit_timeout_s: float = 0.0  # how long a submission may be under way
    repeat_s: float | None = None  # when a submission may be repeated even if one is under way; None means never
    policy: tuple[Rule, ...] = POLICY


@dataclass(frozen=True, slots=True, kw_only=True)
class _Outcome:
    """What the pass did for one job."""

    look_again_at: datetime | None = None
    new_reason: str | None = None  # why the job waits, if that has changed


class Reconciler:
    """Supervises one cluster. Not thread-safe: one thread per cluster."""

    def __init__(
        self,
        store: SupervisorWriter,
        observer: Observer,
        actor: Actor,
        clock: Clock,
        settings: PassSettings,
        *,
        sweep: Callable[[], None] = lambda: None,
        repeats: Repeats | None = None,
    ) -> None:
        """`sweep` is called at the end of each pass and removes files of deleted jobs."""
        self._store = store
        self._observer = observer
        self._actor = actor
        self._clock = clock
        self._settings = settings
        self._sweep = sweep
        self._repeats = repeats or Repeats()
        self.answered = False  # whether the cluster answered in the last pass

    def reconcile(self) -> datetime | None:
        """Run one pass with one decision for each job. Returns the latest time for the next pass, or None.

        Raises StoreUnavailable, after which the next pass continues, and LeaseLost, after which none may follow.
        """
        facts = self._observer.observe()
        self.answered = facts.silence is None
        admissions = self._admit(facts) if self.answered else {}
        outcomes = {each.job.id: self._decide_and_act(each, facts, admissions) for each in facts.supervised}
        reasons = {job_id: each.new_reason for job_id, each in outcomes.items() if each.new_reason is not None}
        if reasons:
            self._store.note(reasons, self._clock.now())
        self._sweep()
        return min((each.look_again_at for each in outcomes.values() if each.look_again_at is not None), default=None)

    def _admit(self, facts: Facts) -> Mapping[str, Admission]:
        claimants = [Claimant(each.job, each.attempt) for each in facts.supervised]
        limits = replace(self._settings.limits, slots=facts.slots)
        return admit(claimants, limits, dependencies=facts.dependencies)

    def _decide_and_act(self, supervised: Supervised, facts: Facts, admissions: Mapping[str, Admission]) -> _Outcome:
        """An error with one job does not stop the pass: the other jobs continue, and the next pass tries again."""
        s = self._situation(supervised, facts, admissions)
        if s is None or s.at_rest():
            return _Outcome()
        try:
            decision = decide(s, self._settings.policy)
            self._actor.act(s, decision, facts.exclusions)
        except (StoreUnavailable, LeaseLost):
            raise
        except BackendBusy as error:
            return _Outcome(new_reason=f"waits: {error}")
        except Exception as error:  # noqa: BLE001
            # The edge of the loop for one job: a cluster that does not answer, a full disk, no free port, or a defect.
            is_defect = not isinstance(error, _EXPECTED)
            self._repeats.warn("job left for the next pass", str(error), s.now, exc_info=is_defect, job=s.job.id)
            return _Outcome(new_reason=f"cannot continue now: {error}")
        waits = isinstance(decision.action, Wait) and decision.sentence != s.job.reason
        return _Outcome(
            look_again_at=s.now + _AT_ONCE if decision.settles else decision.look_again_at,
            new_reason=decision.sentence if waits else None,
        )

    def _situation(self, supervised: Supervised, facts: Facts, admissions: Mapping[str, Admission]) -> Situation | None:
        """Return what the policy needs to know of one job. None if its attempt began after the cluster was observed."""
        job, attempt, seen = supervised.job, supervised.attempt, facts.observation(supervised)
        if attempt is not None and seen is None and not attempt.state.terminal:
            return None
        return Situation(
            now=self._clock.now(),
            job=job,
            attempt=attempt,
            live=None if attempt is None or seen is None else Watched(attempt, seen),
            admission=admissions.get(job.id),
            stop_timeout_s=self._settings.stop_timeout_s,
            submit_timeout_s=self._settings.submit_timeout_s,
            repeat_s=self._settings.repeat_s,
            silence=facts.silence,
            exclusions=tuple(facts.exclusions) if job.spec.supervise.exclude_bad_nodes else (),
        )
