"""Act: carry a decision out. The only place that submits to a cluster, cancels there, and writes status.

Each action writes its effect and its events in one transaction. What reaches into the cluster is written down before
(an intended attempt) or repeated until it is seen (a stop), so that a crash in between is healed by the next pass.
Nothing outside the store is touched without the lease (`require_lease`); the store asks for itself.
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
from orchestrator.domain.job.launch_plan import Site, build_plan, workers_per_node
from orchestrator.domain.job.masking import NOTHING
from orchestrator.domain.job.requests import desired_of_attempt
from orchestrator.domain.observation.node_record import Exclusion, NodeFailure
from orchestrator.domain.observation.observation import Presence, Training
from orchestrator.domain.policy.budget import charge, find_cost, mark_at_launch, recognise
from orchestrator.domain.policy.decision import (
    AvoidOnly,
    BeginRetry,
    Decision,
    EndAttempt,
    Finish,
    MarkNodes,
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
from orchestrator.supervisor import account
from trainer.contract.failure import Failure, FailureKind
from trainer.contract.launch import DesiredDocument, DesiredState

log = structlog.get_logger()


class Actor:
    """Acts on one cluster. `require_lease` raises LeaseLost once another service supervises it. Without `secrets` a job
    that names one cannot start."""

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
        """Carry out. Raises LeaseLost, StoreUnavailable, BackendUnavailable, Refused, OSError; the next pass then
        looks again."""
        action = decision.action
        if not isinstance(action, (Wait, Stop)):
            log.info("decided", job=s.job.id, rule=decision.rule, sentence=decision.sentence)
        match action:
            case Wait():
                pass  # why is noted of all who wait together, at the end of the pass
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
            case TellAgents():
                self._tell_agents(s)
            case Stop():
                self._stop(s, decision, action)
            case EndAttempt():
                _require_evidence(s, decision)
                self._end(s, decision, action)
            case Finish():
                job = s.job.to(action.state, reason=decision.sentence, now=s.now)
                self._apply(job, None, [account.finished(s, job, decision)])
            case BeginRetry():
                self._begin_retry(s, decision)
            case _:
                assert_never(action)

    def _start(self, s: Situation, decision: Decision, action: Start, exclusions: Sequence[Exclusion]) -> None:
        """Write the attempt down, fence off the ones before it, then submit it."""
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
            workers_per_node=workers_per_node(job.spec, self._site.gpus_per_node),
            created_at=s.now,
            tried_at=s.now,
            excluded_nodes=tuple(exclusion.node for exclusion in avoided),
            restore_from=job.desired.restore_from,
            snapshots_told=job.desired.snapshot_number,
        )
        job = job.to(JobState.STARTING, reason=decision.sentence, now=s.now)
        self._require_lease()
        self._folders.fence(job.id, key.number)
        intended = account.intended(job, attempt, decision, s.now)
        self._apply(job, attempt, [account.job_event(job, decision, s.now), intended])
        self._submit(replace(s, job=job, attempt=attempt), decision, refused_so_far="")

    def _submit_again(self, s: Situation, decision: Decision) -> None:
        """Until this submission is answered its outcome is unknown, whatever was answered before."""
        refused_so_far = _live(s).not_permitted
        attempt = replace(_live(s), tried_at=s.now, not_permitted=None)
        self._apply(s.job, attempt, [])
        self._submit(replace(s, attempt=attempt), decision, refused_so_far=refused_so_far)

    def _submit(self, s: Situation, decision: Decision, *, refused_so_far: str | None) -> None:
        """Submit the intended attempt. When the cluster does not answer it stays intended: a later look tells.

        `refused_so_far`: what was answered to the last submission; None if an earlier one may have been accepted.
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
        event = account.attempt_event(submitted, decision, s.now, f"was submitted as {handle}", {"handle": handle})
        self._apply(s.job, submitted, [event])

    def _note_not_permitted(self, s: Situation, decision: Decision, words: str, *, news: bool) -> None:
        """No submission of it was ever accepted: it waits for the permission, and its owner may cancel it at once."""
        attempt = replace(_live(s), not_permitted=words)
        event = account.attempt_event(attempt, decision, s.now, f"was not permitted: {words}", {})
        if news:
            log.warning("submission not permitted", job=s.job.id, attempt=attempt.key.number, reason=words)
        self._apply(s.job.to(s.job.state, reason=f"waits: {words}", now=s.now), attempt, [event] if news else [])

    def _reveal(self, job: Job) -> Mapping[str, str]:
        names = job.spec.run.secrets
        if not names:
            return {}
        if self._secrets is None:
            raise LaunchRefused(f"this service keeps no secrets; the job names {', '.join(names)}")
        return self._secrets.reveal(job.spec.project, names)

    def _note_pending(self, s: Situation, decision: Decision) -> None:
        attempt = _live(s).to(AttemptState.PENDING, reason=decision.sentence, now=s.now)
        event = account.attempt_event(attempt, decision, s.now, f"is in the cluster's queue: {decision.sentence}", {})
        self._apply(s.job.to(s.job.state, reason=decision.sentence, now=s.now), attempt, [event])

    def _avoid_only(self, s: Situation, decision: Decision, action: AvoidOnly) -> None:
        """Tell the cluster first, then write it down: to tell it twice changes nothing."""
        attempt = replace(_live(s), excluded_nodes=action.nodes)
        if isinstance(self._backend, StrictBackend):
            self._require_lease()
            self._backend.avoid_only(build_plan(s.job, attempt, self._site))
        evidence: dict[str, object] = {"excluded_nodes": list(action.nodes)}
        event = account.attempt_event(attempt, decision, s.now, decision.sentence, evidence)
        self._apply(s.job.to(s.job.state, reason=decision.sentence, now=s.now), attempt, [event])

    def _note_running(self, s: Situation, decision: Decision, action: NoteRunning) -> None:
        job, attempt = s.job, _live(s)
        running = attempt.to(AttemptState.RUNNING, reason=decision.sentence, now=s.now)
        events = []
        if attempt.state is not AttemptState.RUNNING:
            events.append(account.living(running, decision, s.now))
        if action.formed:
            job = job.to(JobState.RUNNING, reason=decision.sentence, now=s.now)
            events += [account.job_event(job, decision, s.now), *account.recovered(job, running, decision, s.now)]
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
        """Write down, fence (by force only: an attempt that is asked politely may still commit), then cancel."""
        job, attempt = s.job, _live(s)
        first = attempt.stopping_since is None
        changes = first or decision.sentence != attempt.reason  # the job's reason may name a failed try
        if changes:
            log.info("decided", job=job.id, rule=decision.rule, sentence=decision.sentence, force=action.force)
            stopping = attempt.to(attempt.state, reason=decision.sentence, now=s.now)
            events = account.stopping(attempt, decision, s.now) if first else []
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
            # Whatever the disk says. A polite word is said once: a second signal would cut the agent's clean-up short.
            if action.force or first:
                self._backend.cancel(attempt.key, force=action.force)
        if not changes and decision.sentence != job.reason:
            self._apply(job.to(job.state, reason=decision.sentence, now=s.now), None, [])

    def _end(self, s: Situation, decision: Decision, action: EndAttempt) -> None:
        if s.live is not None and s.live.presence is Presence.ABSENT:
            # A service that slept in the middle of the submission may still come to it, long after the end of the job.
            self._require_lease()
            never_begun = self._folders.withdraw(s.job.id, s.live.attempt.key.number)
            known = s.live.attempt.state is not AttemptState.INTENDED or bool(s.live.exits())
            if not (never_begun or known):
                return  # an agent has begun it: the next look sees it, unless the cluster knew it and has forgotten it
        attempt, training = _live(s), Training() if s.live is None else s.live.seen.training
        failure = action.failure
        if failure is not None:
            failure = mark_at_launch(s.job, failure, began=s.live is not None and s.live.began())
        if failure is not None and attempt.started_at is not None:
            failure = recognise(s.job, failure, ran_s=(s.now - attempt.started_at).total_seconds())
        attempt = _marked(attempt, decision).to(action.state, reason=decision.sentence, now=s.now, failure=failure)
        charged = charge(s.job, attempt, training, failure, s.now)
        job = charged.to(action.job_state, reason=decision.sentence, now=s.now)
        if action.job_state is JobState.RECOVERING:
            job = replace(job, recovering_since=job.recovering_since or s.now)
        cost = find_cost(s.job, attempt, training, failure, s.now)
        kept_step = training.kept_step if job.kept_step != s.job.kept_step else None
        events = [account.ended(s, attempt, decision, cost, kept_step), account.job_event(job, decision, s.now)]
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
        self._apply(fresh, None, [account.job_event(fresh, decision, s.now)])

    def _reserve_port(self, job: Job, key: AttemptKey, last: Attempt | None) -> int:
        """The next free port above the last attempt's: a port that was taken there is not tried again at once.

        A job's first one is spread over the range, so that two services on one machine rarely meet.
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
        all_events = [*events, *(account.node_marked(mark) for mark in marks)]
        mask = NOTHING if self._secrets is None else self._secrets.mask_of_project(job.spec.project)
        change = Change(job=job, attempt=attempt, events=all_events, node_failures=marks)
        self._store.apply(change if not mask else account.hidden(change, mask))


def _require_evidence(s: Situation, decision: Decision) -> None:
    """An attempt that is called ended is followed by another one: a rule that is wrong must not make two of one."""
    said = weigh(s)
    if not permits_end(said):
        raise AssertionError(f"{s.job.id}: rule {decision.rule} ends an attempt on no evidence: {said}")


def _marked(attempt: Attempt, decision: Decision) -> Attempt:
    """The attempt with the nodes that get a mark for it."""
    return replace(attempt, marked_nodes=tuple(dict.fromkeys((*attempt.marked_nodes, *decision.blames))))


def _live(s: Situation) -> Attempt:
    if s.attempt is None:
        raise AssertionError(f"{s.job.id}: the policy acts on an attempt that is not there")
    return s.attempt
