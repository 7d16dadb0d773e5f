"""Act: carry out a decision. Only this module submits to a cluster, cancels there, and writes status.

Each action writes its effect and its events in one transaction. A submission is written down before it is made (an
INTENDED attempt), and a stop is repeated until the attempt has ended. So the next pass recovers from a crash.
Each action requires the lease before it changes anything outside the store. The store checks the lease itself.
"""

from __future__ import annotations

import secrets
import zlib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import assert_never

import structlog

from orchestrator.domain.errors import LaunchRefused, NotPermitted
from orchestrator.domain.job.attempt import Attempt, AttemptKey, AttemptState
from orchestrator.domain.job.event import Event
from orchestrator.domain.job.job import Job, JobState
from orchestrator.domain.job.launch_plan import Site, build_plan
from orchestrator.domain.job.masking import NOTHING
from orchestrator.domain.job.requests import desired_of_attempt
from orchestrator.domain.observation.node_record import Exclusion, NodeFailure
from orchestrator.domain.observation.observation import Presence, Training
from orchestrator.domain.policy.budget import charge, find_cost, mark_at_launch, mark_repeated
from orchestrator.domain.policy.decision import (
    AvoidOnly,
    BeginRetry,
    Decision,
    EndAttempt,
    Finish,
    MarkNodes,
    NoteMembers,
    NotePending,
    NoteRunning,
    Start,
    Stop,
    Submit,
    TellAgents,
    Wait,
)
from orchestrator.domain.policy.evidence import permits_end, weigh
from orchestrator.domain.policy.situation import Situation
from orchestrator.identity.vault import Vault
from orchestrator.ports.cluster import Backend, RunDirectories, StrictBackend
from orchestrator.ports.supervision import Change, SupervisorWriter
from orchestrator.supervisor import act_events
from trainer.contract.failure import Failure, FailureKind
from trainer.contract.launch import DesiredDocument, DesiredState

log = structlog.get_logger()


class Actor:
    """Acts on one cluster. `require_lease` raises LeaseLost once the lease is lost.

    Without `secrets`, a job that names secrets cannot start.
    """

    def __init__(
        self,
        store: SupervisorWriter,
        backend: Backend,
        folders: RunDirectories,
        site: Site,
        *,
        ports: range,
        require_lease: Callable[[], None] = lambda: None,
        secrets: Vault | None = None,
    ) -> None:
        self._store = store
        self._backend = backend
        self._folders = folders
        self._site = site
        self._ports = ports
        self._require_lease = require_lease
        self._secrets = secrets

    def act(self, s: Situation, decision: Decision, exclusions: Sequence[Exclusion]) -> None:  # noqa: C901  # one arm for each action
        """Carry out the decision. After an error, the next pass decides again.

        Raises LeaseLost, StoreUnavailable, BackendUnavailable, Refused, OSError.
        """
        action = decision.action
        if not isinstance(action, (Wait, Stop)):
            log.info("decided", job=s.job.id, rule=decision.rule, sentence=decision.sentence)
        match action:
            case Wait():
                pass  # the reconciler writes the reasons of all waiting jobs at once
            case Start():
                self._start(s, decision, action, exclusions)
            case Submit():
                self._submit_again(s, decision)
            case NotePending():
                self._note_pending(s, decision)
            case AvoidOnly():
                self._avoid_only(s, decision, action)
            case NoteRunning():
                self._note_running(s, decision, action)
            case MarkNodes():
                self._mark_nodes(s, decision)
            case NoteMembers():
                self._apply(s.job, None, act_events.members(s, decision, action))
            case TellAgents():
                self._tell_agents(s)
            case Stop():
                self._stop(s, decision, action)
            case EndAttempt():
                _require_evidence(s, decision)
                self._end(s, decision, action)
            case Finish():
                job = s.job.to(action.state, reason=decision.sentence, now=s.now)
                self._apply(job, None, [act_events.finished(s, job, decision)])
            case BeginRetry():
                self._begin_retry(s, decision)
            case _:
                assert_never(action)

    def _start(self, s: Situation, decision: Decision, action: Start, exclusions: Sequence[Exclusion]) -> None:
        """Fence off earlier attempts, write the new one down, then submit it."""
        job, topology = s.job, s.job.spec.topology
        key = AttemptKey(job.id, 1 if s.attempt is None else s.attempt.key.number + 1)
        fixed = topology.min_nodes == action.nodes
        avoided = exclusions if job.spec.supervise.exclude_bad_nodes else ()
        attempt = Attempt(
            key=key,
            state=AttemptState.INTENDED,
            reason=decision.sentence,
            nonce=secrets.token_hex(4),
            port=self._reserve_port(job, key, s.attempt),
            nodes=str(action.nodes) if fixed else f"{topology.min_nodes}:{action.nodes}",
            asked=topology.nodes,
            workers_per_node=job.spec.topology.count_workers(self._site.gpus_per_node),
            created_at=s.now,
            tried_at=s.now,
            excluded_nodes=tuple(exclusion.node for exclusion in avoided),
            restore_from=job.desired.restore_from,
            snapshots_told=job.desired.snapshot_number,
        )
        job = job.to(JobState.STARTING, reason=decision.sentence, now=s.now)
        self._require_lease()
        self._folders.fence(job.id, key.number)
        intended = act_events.intended(job, attempt, decision, s.now)
        self._apply(job, attempt, [act_events.job_event(job, decision, s.now), intended])
        self._submit(replace(s, job=job, attempt=attempt), decision, refused_so_far="")

    def _submit_again(self, s: Situation, decision: Decision) -> None:
        """Forget the last answer first, because the outcome is unknown until the cluster answers."""
        refused_so_far = _live(s).not_permitted
        attempt = replace(_live(s), tried_at=s.now, not_permitted=None)
        self._apply(s.job, attempt, [])
        self._submit(replace(s, attempt=attempt), decision, refused_so_far=refused_so_far)

    def _submit(self, s: Situation, decision: Decision, *, refused_so_far: str | None) -> None:
        """Submit the attempt. If the cluster does not answer, it stays INTENDED and a later pass finds out.

        `refused_so_far` is the answer to the last submission. None if an earlier submission may have been accepted.
        """
        attempt = _live(s)
        self._require_lease()
        try:
            handle = self._backend.submit(build_plan(s.job, attempt, self._site, self._reveal(s.job)))
        except LaunchRefused as error:
            failure = Failure(kind=FailureKind.LAUNCH, message=str(error))
            ending = EndAttempt(AttemptState.FAILED, JobState.RECOVERING, failure)
            self._end(s, replace(decision, sentence=str(error)), ending)
            return
        except NotPermitted as error:
            if refused_so_far is None:
                raise
            self._note_not_permitted(s, decision, str(error), news=str(error) != refused_so_far)
            return
        submitted = replace(attempt.to(AttemptState.SUBMITTED, reason=decision.sentence, now=s.now), handle=handle)
        event = act_events.attempt_event(submitted, decision, s.now, f"was submitted as {handle}", {"handle": handle})
        self._apply(s.job, submitted, [event])

    def _note_not_permitted(self, s: Situation, decision: Decision, words: str, *, news: bool) -> None:
        """The cluster accepted no submission of the attempt. It waits for permission; a cancel takes effect at once."""
        attempt = replace(_live(s), not_permitted=words)
        event = act_events.attempt_event(attempt, decision, s.now, f"was not permitted: {words}", {})
        if news:
            log.warning("submission not permitted", job=s.job.id, attempt=attempt.key.number, reason=words)
        self._apply(s.job.to(s.job.state, reason=f"waits: {words}", now=s.now), attempt, [event] if news else [])

    def _reveal(self, job: Job) -> Mapping[str, str]:
        names = job.spec.run.secrets
        if not names:
            return {}
        if self._secrets is None:
            raise LaunchRefused(f"this service stores no secrets, but the job names {', '.join(names)}")
        return self._secrets.reveal(job.spec.project, names)

    def _note_pending(self, s: Situation, decision: Decision) -> None:
        attempt = _live(s).to(AttemptState.PENDING, reason=decision.sentence, now=s.now)
        event = act_events.attempt_event(
            attempt, decision, s.now, f"is in the cluster's queue: {decision.sentence}", {}
        )
        self._apply(s.job.to(s.job.state, reason=decision.sentence, now=s.now), attempt, [event])

    def _avoid_only(self, s: Situation, decision: Decision, action: AvoidOnly) -> None:
        """Tell the cluster first, then write it down. A repeated call to the cluster changes nothing."""
        attempt = replace(_live(s), excluded_nodes=action.nodes)
        if isinstance(self._backend, StrictBackend):
            self._require_lease()
            self._backend.avoid_only(build_plan(s.job, attempt, self._site))
        evidence: dict[str, object] = {"excluded_nodes": list(action.nodes)}
        event = act_events.attempt_event(attempt, decision, s.now, decision.sentence, evidence)
        self._apply(s.job.to(s.job.state, reason=decision.sentence, now=s.now), attempt, [event])

    def _note_running(self, s: Situation, decision: Decision, action: NoteRunning) -> None:
        job, attempt = s.job, _live(s)
        running = attempt.to(AttemptState.RUNNING, reason=decision.sentence, now=s.now)
        events = []
        if attempt.state is not AttemptState.RUNNING:
            events.append(act_events.living(running, decision, s.now))
        if action.formed:
            job = job.to(JobState.RUNNING, reason=decision.sentence, now=s.now)
            events += [act_events.job_event(job, decision, s.now), *act_events.recovered(job, running, decision, s.now)]
            job = replace(job, recovering_since=None)
        self._apply(job.to(job.state, reason=decision.sentence, now=s.now), running, events)

    def _mark_nodes(self, s: Situation, decision: Decision) -> None:
        failure = Failure(kind=FailureKind.NODE, message=decision.sentence)
        self._apply(s.job, _marked(_live(s), decision), [], self._marks(s, decision, failure))

    def _tell_agents(self, s: Situation) -> None:
        requested, attempt = s.job.desired, _live(s)
        self._require_lease()
        self._folders.write_desired(s.job.id, attempt.key.number, desired_of_attempt(requested, attempt.key.number))
        errand = max(attempt.errand_told, requested.errand(attempt.key.number))
        self._apply(s.job, replace(attempt, snapshots_told=requested.snapshot_number, errand_told=errand), [])

    def _stop(self, s: Situation, decision: Decision, action: Stop) -> None:
        """Write the stop down, fence if forced, then cancel. Until it is forced, the attempt may still commit."""
        job, attempt = s.job, _live(s)
        first = attempt.stopping_since is None
        changes = first or decision.sentence != attempt.reason  # the job's reason may be that of a failed cancel
        if changes:
            log.info("decided", job=job.id, rule=decision.rule, sentence=decision.sentence, force=action.force)
            stopping = attempt.to(attempt.state, reason=decision.sentence, now=s.now)
            events = act_events.stopping(attempt, decision, s.now) if first else []
            marks = self._marks(s, decision, action.failure) if first else []
            if first:
                stopping = replace(_marked(stopping, decision), stopping_since=s.now, failure=action.failure)
            self._apply(job.to(job.state, reason=decision.sentence, now=s.now), stopping, events, marks)
        self._require_lease()
        try:
            if action.force:
                self._folders.fence(job.id, attempt.key.number + 1)
            document = DesiredDocument(state=DesiredState.STOP, number=job.desired.number)
            self._folders.write_desired(job.id, attempt.key.number, document)
        finally:
            # Cancel even if the disk failed. Without force, cancel once: a second signal would cut the agent's
            # cleanup short.
            if action.force or first:
                self._backend.cancel(attempt.key, force=action.force)
        if not changes and decision.sentence != job.reason:
            self._apply(job.to(job.state, reason=decision.sentence, now=s.now), None, [])

    def _end(self, s: Situation, decision: Decision, action: EndAttempt) -> None:
        if s.live is not None and s.live.presence is Presence.ABSENT:
            # A service that was paused during the submission may still make it, long after the job has ended.
            self._require_lease()
            never_begun = self._folders.withdraw(s.job.id, s.live.attempt.key.number)
            known = s.live.attempt.state is not AttemptState.INTENDED or bool(s.live.exits())
            if not (never_begun or known):
                return  # an agent has claimed the attempt, so the next pass will see it run
        attempt, training = _live(s), Training() if s.live is None else s.live.seen.training
        failure = action.failure
        if failure is not None:
            failure = mark_at_launch(s.job, failure, began=s.live is not None and s.live.began())
        if failure is not None and attempt.started_at is not None:
            failure = mark_repeated(s.job, failure, ran_s=(s.now - attempt.started_at).total_seconds())
        attempt = _marked(attempt, decision).to(action.state, reason=decision.sentence, now=s.now, failure=failure)
        charged = charge(s.job, attempt, training, failure, s.now)
        job = charged.to(action.job_state, reason=decision.sentence, now=s.now)
        if action.job_state is JobState.RECOVERING:
            job = replace(job, recovering_since=job.recovering_since or s.now)
        cost = find_cost(s.job, attempt, training, failure, s.now)
        kept_step = training.kept_step if job.kept_step != s.job.kept_step else None
        events = [act_events.ended(s, attempt, decision, cost, kept_step), act_events.job_event(job, decision, s.now)]
        self._apply(job, attempt, events, self._marks(s, decision, failure))

    def _begin_retry(self, s: Situation, decision: Decision) -> None:
        fresh = replace(
            s.job,
            retries_done=s.job.desired.retry_number,
            spent={},
            fruitless=0,
            retry_at=None,
            recovering_since=None,
            last_failure=None,
            farthest_step=None,
            kept_step=None,
            kept_s=0.0,
        )
        fresh = fresh.to(JobState.QUEUED, reason=decision.sentence, now=s.now)
        self._apply(fresh, None, [act_events.job_event(fresh, decision, s.now)])

    def _reserve_port(self, job: Job, key: AttemptKey, last: Attempt | None) -> int:
        """Return the next free port above the last attempt's, so that a port in use is not tried again at once.

        The first ports of jobs are spread over the range, so that two services on one machine rarely collide.
        """
        spread = self._ports[zlib.crc32(job.id.encode()) % len(self._ports)]
        after = spread if last is None else last.port
        return self._store.reserve_port(key, job.spec.cluster, self._ports, after=after)

    def _marks(self, s: Situation, decision: Decision, failure: Failure | None) -> list[NodeFailure]:
        kind = FailureKind.UNKNOWN if failure is None else failure.kind
        return [
            NodeFailure(
                cluster=s.job.spec.cluster, node=node, at=s.now, key=_live(s).key, kind=kind, sentence=decision.sentence
            )
            for node in decision.blames
        ]

    def _apply(self, job: Job, attempt: Attempt | None, events: list[Event], marks: Sequence[NodeFailure] = ()) -> None:
        all_events = [*events, *(act_events.node_marked(mark) for mark in marks)]
        mask = NOTHING if self._secrets is None else self._secrets.mask_of_project(job.spec.project)
        change = Change(job=job, attempt=attempt, events=all_events, node_failures=marks)
        self._store.apply(change if not mask else act_events.hidden(change, mask))


def _require_evidence(s: Situation, decision: Decision) -> None:
    """Guard against a wrong rule. A new attempt follows an ended one, and two must never run at once."""
    said = weigh(s)
    if not permits_end(said):
        raise AssertionError(f"{s.job.id}: rule {decision.rule} ends an attempt on no evidence: {said}")


def _marked(attempt: Attempt, decision: Decision) -> Attempt:
    return replace(attempt, marked_nodes=tuple(dict.fromkeys((*attempt.marked_nodes, *decision.blames))))


def _live(s: Situation) -> Attempt:
    if s.attempt is None:
        raise AssertionError(f"{s.job.id}: the policy acts on an attempt that does not exist")
    return s.attempt
