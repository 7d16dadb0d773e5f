"""The product in one loop: observe, decide, act. Read this first.

A pass handles the jobs of one cluster that something has woken (`roster`):

1. Observe: read what changed from the store, what runs from the cluster, and what agents wrote from the run directories
   (`observe`).
2. Decide: build one Situation for each job that is due and ask the policy (`domain.policy.decide`).
3. Act: carry out each decision (`act`). A job with nothing to do sleeps until something changes or a deadline comes.

What a pass remembers saves work. Losing it costs a look at every job and can delay a verdict. After a crash at any
point, the next pass looks at every job, sees the same facts and continues. Only the holder of the cluster's lease runs
passes (`lease_keeper`); `loop` says when.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from datetime import datetime, timedelta

import structlog

from orchestrator.domain.errors import BackendBusy, LeaseLost, Refused, StoreUnavailable, Unavailable
from orchestrator.domain.observation.watched import Watched
from orchestrator.domain.policy.deadlines import sleeps_until
from orchestrator.domain.policy.decide import POLICY, decide
from orchestrator.domain.policy.decision import Wait
from orchestrator.domain.policy.rules.kinds import Rule
from orchestrator.domain.policy.situation import Situation
from orchestrator.domain.queueing.admission import Admission, Limits, admit
from orchestrator.ports.clock import Clock
from orchestrator.ports.supervision import Supervised, SupervisorWriter
from orchestrator.supervisor.act import Actor
from orchestrator.supervisor.observe import Facts, Observer
from orchestrator.supervisor.repeats import Repeats

log = structlog.get_logger()

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
    sleeps_until: datetime | None = None  # None if the next pass must look at the job
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
        overlooked: Callable[[], None] = lambda: None,
        repeats: Repeats | None = None,
    ) -> None:
        """`sweep` is called at the end of each pass and removes files of deleted jobs.

        `overlooked` is called if the regular check of a job finds something to do.
        """
        self._store = store
        self._observer = observer
        self._actor = actor
        self._clock = clock
        self._settings = settings
        self._sweep = sweep
        self._overlooked = overlooked
        self._repeats = repeats or Repeats()
        self._admissions: Mapping[str, Admission] = {}
        self._basis: tuple[object, ...] = ()  # the values that they were computed from
        self.answered = False  # whether the cluster answered in the last pass
        self.idle = False  # whether the last pass looked at no job

    def reconcile(self) -> datetime | None:
        """Run one pass with one decision for each job that is due. Returns the latest time for the next pass, or None.

        Raises StoreUnavailable, after which the next pass continues, and LeaseLost, after which none may follow.
        """
        facts, roster = self._observer.observe(), self._observer.roster
        self.answered = facts.silence is None
        self._admit(facts)
        outcomes = {each.job.id: self._decide_and_act(each, facts) for each in roster.due()}
        reasons = {job_id: each.new_reason for job_id, each in outcomes.items() if each.new_reason is not None}
        self.idle = not outcomes
        now = self._clock.now()
        if reasons:
            self._store.note(reasons, now)
        for job_id, each in outcomes.items():
            if each.sleeps_until is not None:
                roster.sleep(job_id, until=each.sleeps_until, now=now)
        self._sweep()
        moments = [*(each.look_again_at for each in outcomes.values()), roster.next_alarm_at]
        return min((moment for moment in moments if moment is not None), default=None)

    def _admit(self, facts: Facts) -> None:
        """If anything has changed that decides who may start, judge again. Wake the jobs with another answer."""
        roster = self._observer.roster
        basis = (roster.version, facts.slots, facts.dependencies, self.answered)
        if basis == self._basis:
            return
        limits = replace(self._settings.limits, slots=facts.slots)
        found = admit(roster.claimants, limits, dependencies=facts.dependencies) if self.answered else {}
        before = self._admissions
        roster.wake(job_id for job_id in found.keys() | before.keys() if found.get(job_id) != before.get(job_id))
        self._basis, self._admissions = basis, found

    def _decide_and_act(self, supervised: Supervised, facts: Facts) -> _Outcome:
        """An error with one job does not stop the pass: the other jobs continue, and the next pass tries again."""
        s = self._situation(supervised, facts)
        if s is None:
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
            stopping = "" if s.live is None or s.unwanted is None else f"stopping: {s.unwanted}; "
            return _Outcome(new_reason=f"{stopping}cannot continue now: {error}")
        waits = isinstance(decision.action, Wait)
        if not waits and self._observer.roster.is_only_checked(s.job.id):
            self._observer.roster.wake([s.job.id])  # count the change only once
            self._overlooked()
            log.warning("only the regular check of a job found something to do", job=s.job.id, rule=decision.rule)
        return _Outcome(
            look_again_at=s.now + _AT_ONCE if decision.settles else decision.look_again_at,
            sleeps_until=sleeps_until(s, decision.look_again_at) if waits else None,
            new_reason=decision.sentence if waits and decision.sentence != s.job.reason else None,
        )

    def _situation(self, supervised: Supervised, facts: Facts) -> Situation | None:
        """Return what the policy needs to know of one job. None if its attempt began after the cluster was observed."""
        job, attempt, seen = supervised.job, supervised.attempt, self._observer.look(supervised, facts)
        if attempt is not None and seen is None and not attempt.state.terminal:
            return None
        return Situation(
            now=self._clock.now(),
            job=job,
            attempt=attempt,
            live=None if attempt is None or seen is None else Watched(attempt, seen),
            admission=self._admissions.get(job.id),
            stop_timeout_s=self._settings.stop_timeout_s,
            submit_timeout_s=self._settings.submit_timeout_s,
            repeat_s=self._settings.repeat_s,
            silence=facts.silence,
            exclusions=tuple(facts.exclusions) if job.spec.supervise.exclude_bad_nodes else (),
        )
