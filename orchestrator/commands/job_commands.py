"""Submissions and requests. Writes what is desired and an event, never a status.

Every command is idempotent: a repeated request changes nothing and gets the same answer.
"""

from __future__ import annotations

import base64
import copy
import hashlib
import json
import secrets
from collections.abc import Callable, Mapping
from dataclasses import replace

from orchestrator.commands.checks import Checks
from orchestrator.commands.submission import find_cluster
from orchestrator.commands.target import find_target
from orchestrator.domain.access.identity import Principal
from orchestrator.domain.counted import counted
from orchestrator.domain.errors import Conflict, FieldProblem, InvalidSpec
from orchestrator.domain.job.attempt import AttemptState
from orchestrator.domain.job.event import Event, EventKind
from orchestrator.domain.job.faults import Order, request_chaos, request_stacks
from orchestrator.domain.job.job import Desired, Job, JobState
from orchestrator.domain.job.requests import (
    JobRequest,
    request_cancel,
    request_resume,
    request_snapshot,
    request_suspend,
)
from orchestrator.domain.specs.ineffective_fields import list_ineffective
from orchestrator.domain.specs.spec import ARRAY_LABEL, JobSpec
from orchestrator.domain.specs.sweep import ArraySpec, expand
from orchestrator.domain.specs.time_limit import list_limit_warnings
from orchestrator.domain.specs.validation import leaves, merge_patch, parse_spec
from orchestrator.ports.clock import Clock
from orchestrator.ports.jobs import JobLookup, JobStore
from orchestrator.store.history_reader import HistoryReader
from orchestrator.wire.job_requests import ChaosRequest, RetryRequest, StacksRequest
from trainer.contract.location import is_url
from trainer.contract.manifest import parse_snapshot_name

_ID_BYTES = 5
_FIXED = ("name", "project", "cluster", "array")  # fields that a retry cannot change


class Commands:
    """`wake` starts a pass of the supervisor soon. It must not block.

    Without `history`, the nodes of a running job are not known, nor snapshots that the service cannot read.
    """

    def __init__(
        self,
        jobs: JobStore,
        reader: JobLookup,
        checks: Checks,
        clock: Clock,
        wake: Callable[[], None],
        *,
        history: HistoryReader | None = None,
    ) -> None:
        self._jobs = jobs
        self._reader = reader
        self._history = history
        self._checks = checks
        self._clock = clock
        self._wake = wake

    def acting(self, caller: Principal) -> Commands:
        """Return the commands for a caller. Events name the caller. What the caller may not see counts as missing."""
        commands = copy.copy(self)
        commands._checks = self._checks.acting(caller)
        return commands

    def submit(self, spec: JobSpec, idempotency_key: str | None) -> tuple[Job, bool]:
        """Store a job. Returns False if the caller already stored it with this key. Raises InvalidSpec, Conflict."""
        if spec.array is not None:
            raise InvalidSpec([FieldProblem("/array", "is set by the service; submit a sweep to make an array")])
        # Before the checks: what the spec names may be gone since the first call, but the answer must be the same.
        repeated = self._find_repeated(spec, idempotency_key)
        return (repeated, False) if repeated else self._add(spec, self._checks.accept(spec), idempotency_key)

    def submit_array(self, spec: ArraySpec, idempotency_key: str | None) -> tuple[list[Job], bool]:
        """Store the members of an array. Returns False if the caller already stored all of them with this key.

        Stores none unless all are accepted. Raises InvalidSpec, Conflict.
        """
        members = expand(spec, f"{spec.name}-{self._array_suffix(spec.project, idempotency_key)}")
        keys = [None if idempotency_key is None else f"{idempotency_key}/{index}" for index in range(len(members))]
        found = [(member, key, self._find_repeated(member, key)) for member, key in zip(members, keys, strict=True)]
        fresh = [(member, self._checks.accept(member), key) for member, key, repeated in found if repeated is None]
        added = [self._add(*each) for each in fresh]
        jobs = [repeated for _, _, repeated in found if repeated is not None] + [job for job, _ in added]
        return jobs, any(created for _, created in added)

    def _array_suffix(self, project: str, key: str | None) -> str:
        """Return a random suffix, or with a key always the same one, so that a repeated call names the same array."""
        if key is None:
            return _random_id()
        named = json.dumps([project, self._checks.caller.name, key]).encode()
        return _as_id(hashlib.sha256(named).digest()[:_ID_BYTES])

    def _find_repeated(self, spec: JobSpec, key: str | None) -> Job | None:
        """Return the job that the caller stored with this key. Raises Conflict if its spec is another one."""
        return None if key is None else self._jobs.repeated(spec.project, self._checks.caller.name, key, digest(spec))

    def _add(self, spec: JobSpec, stored: JobSpec, idempotency_key: str | None) -> tuple[Job, bool]:
        """Store a job that was accepted as `stored`. Returns False if another call stored it with this key first."""
        caller, now = self._checks.caller.name, self._clock.now()
        job = Job(
            id=f"{spec.name}-{_random_id()}",
            spec=stored,
            state=JobState.QUEUED,
            reason=f"waits for its turn on cluster {spec.cluster}",
            desired=Desired(),
            created_at=now,
            updated_at=now,
            owner=caller,
        )
        sentence = f"submitted to cluster {spec.cluster}, project {spec.project}"
        event = Event(at=now, kind=EventKind.JOB_SUBMITTED, sentence=sentence, actor=caller)
        answer = self._jobs.add(job, idempotency_key=idempotency_key, digest=digest(spec), event=event)
        self._wake()
        return answer, answer.id == job.id

    def list_warnings(self, spec: JobSpec) -> list[str]:
        """Return one sentence for each field of an accepted spec that has no effect or leaves too little time."""
        cluster = self._checks.clusters.get(spec.cluster)  # None if it was removed before a repeated submission
        if cluster is None:
            return []
        return [
            *list_ineffective(spec, cluster.traits, is_plan=False),
            *list_limit_warnings(spec, cluster.notice),
        ]

    def cancel(self, job_id: str) -> Job:
        """Request the job's end. Raises NotFound, and Conflict if the job has ended in another way."""
        return self._request(job_id, request_cancel)

    def suspend(self, job_id: str) -> Job:
        """Request that the job takes a snapshot and frees its slots until it is resumed. Raises NotFound, Conflict."""
        return self._request(job_id, request_suspend)

    def resume(self, job_id: str) -> Job:
        """Withdraw the suspension. Raises NotFound, Conflict."""
        return self._request(job_id, request_resume)

    def snapshot(self, job_id: str) -> Job:
        """Request one more snapshot of the running attempt. Raises NotFound, Conflict.

        A second call before the agents have received the first changes nothing.
        """
        passed_on = self._passed_on(job_id)
        return self._request(job_id, lambda job: request_snapshot(job, passed_on))

    def stacks(self, job_id: str, request: StacksRequest) -> Job:
        """Request the stacks of the running attempt. Raises NotFound, Conflict, InvalidSpec."""
        target = find_target(self._reader, self._history, job_id)
        return self._request(job_id, lambda job: request_stacks(job, target, request.rank))

    def chaos(self, job_id: str, request: ChaosRequest) -> Job:
        """Request a fault for the running attempt. Raises NotFound, Conflict, InvalidSpec."""
        target = find_target(self._reader, self._history, job_id)
        order = Order(fault=request.fault, rank=request.rank, node=request.node)
        return self._request(job_id, lambda job: request_chaos(job, target, order))

    def scale(self, job_id: str, nodes: str) -> Job:
        """Request another number or range of nodes. Raises NotFound, Conflict, InvalidSpec."""

        def scaled(job: Job) -> JobRequest | None:
            if job.state.terminal:
                raise Conflict(f"job {job_id} has ended {job.state}; retry it with a patch of topology.nodes")
            spec = self._scaled(job.spec, nodes)
            sentence = (
                f"its owner asked for {counted(spec.topology.nodes, 'node')} instead of {job.spec.topology.nodes}"
            )
            return None if spec == job.spec else JobRequest(job.desired, EventKind.SCALE_REQUESTED, sentence, spec=spec)

        return self._request(job_id, scaled)

    def retry(self, job_id: str, request: RetryRequest) -> Job:
        """Request another attempt of a running or ended job. Raises NotFound, Conflict, InvalidSpec."""

        def retried(job: Job) -> JobRequest | None:
            if job.desired.cancelled and not job.state.terminal:
                raise Conflict(f"job {job_id} is being cancelled; retry it when it has ended")
            spec = self._patched(job, request)
            self._check_restore(replace(job, spec=spec), request.restore_from)
            if job.retry_requested:
                _require_same_retry(job, request, spec)
                return None
            desired = replace(
                job.desired,
                cancelled=False,
                suspended=False,
                retry_number=job.retries_done + 1,
                restore_from=request.restore_from,
            )
            evidence: dict[str, object] = {}
            if request.restore_from is not None:
                evidence["restore_from"] = request.restore_from
            if request.patch:
                evidence["changed"] = leaves(request.patch)  # names only: values may be confidential
            return JobRequest(
                desired, EventKind.RETRY_REQUESTED, _retry_sentence(request), spec=spec, evidence=evidence
            )

        return self._request(job_id, retried)

    def _request(self, job_id: str, decide: Callable[[Job], JobRequest | None]) -> Job:
        """Read the job, decide and write, again if another request came in between. None writes nothing."""
        while True:
            job = self._jobs.get(job_id)
            request = decide(job)
            if request is None:
                return job
            desired = replace(request.desired, number=job.desired.number + 1)
            evidence = {"state": job.state.value, **request.evidence}
            event = Event(
                at=self._clock.now(),
                kind=request.kind,
                sentence=request.sentence,
                evidence=evidence,
                actor=self._checks.caller.name,
            )
            changed = None if request.spec == job.spec else request.spec
            if self._jobs.record_request(job_id, desired, event, spec=changed):
                self._wake()
                return replace(job, desired=desired, spec=changed or job.spec)

    def _passed_on(self, job_id: str) -> int | None:
        """Return the snapshot_number that the running attempt's agents have received. None if no attempt is running."""
        attempt = self._reader.standing(job_id).attempt
        return None if attempt is None or attempt.state is not AttemptState.RUNNING else attempt.snapshots_told

    def _scaled(self, spec: JobSpec, nodes: str) -> JobSpec:
        """Return the spec with another number of nodes. Raises InvalidSpec that points at the field of the request."""
        document = spec.model_dump(mode="json", by_alias=True)
        try:
            scaled = parse_spec(merge_patch(document, {"topology": {"nodes": nodes}}))
            return self._checks.accept(scaled, known=spec)
        except InvalidSpec as error:
            messages = [p.message if p.pointer.startswith("/topology") else str(error) for p in error.problems]
            raise InvalidSpec([FieldProblem("/nodes", message) for message in dict.fromkeys(messages)]) from error

    def _patched(self, job: Job, request: RetryRequest) -> JobSpec:
        if not request.patch:
            return job.spec
        document = job.spec.model_dump(mode="json", by_alias=True)
        return self._checks.accept(parse_spec_patch(document, request.patch), job.id, prefix="/patch", known=job.spec)

    def _check_restore(self, job: Job, name: str | None) -> None:
        if name is None:
            return
        if parse_snapshot_name(name) is None:
            message = f"is {name!r}, must be a snapshot's name such as 'step-00000120-a1-g1'"
            raise InvalidSpec([FieldProblem("/restore_from", message)])
        if not self._has_snapshot(job, name):
            raise InvalidSpec([FieldProblem("/restore_from", f"job {job.id} has no committed snapshot {name}")])

    def _has_snapshot(self, job: Job, name: str) -> bool:
        """Look at the files if the service can read them, else at the stored journals."""
        cluster = find_cluster(job.spec, self._checks.clusters)
        if cluster.shares_files and not is_url(job.spec.snapshot.dir or ""):
            return cluster.has_snapshot(job, name)
        return self._history is not None and self._history.has_snapshot(job.id, name)


def digest(spec: JobSpec) -> str:
    """Return the SHA-256 of the canonical spec. Submissions with the same digest are the same."""
    document = spec.model_dump(mode="json", by_alias=True)
    return hashlib.sha256(json.dumps(document, sort_keys=True, separators=(",", ":")).encode()).hexdigest()


def parse_spec_patch(document: Mapping[str, object], patch: Mapping[str, object]) -> JobSpec:
    """Return the spec with a merge patch applied. Raises InvalidSpec with pointers into the request."""
    fixed = [
        FieldProblem(f"/patch/{name}", "cannot change in a retry; submit a new job")
        for name in _FIXED
        if name in patch and patch[name] != document[name]
    ]
    if fixed:
        raise InvalidSpec(fixed)
    patched = parse_spec(merge_patch(document, patch), prefix="/patch")
    if patched.array is not None and patched.labels.get(ARRAY_LABEL) != patched.array.id:
        raise InvalidSpec([FieldProblem(f"/patch/labels/{ARRAY_LABEL}", "is set by the service")])
    return patched


def _require_same_retry(job: Job, request: RetryRequest, spec: JobSpec) -> None:
    if request.restore_from == job.desired.restore_from and spec == job.spec:
        return
    raise Conflict(f"job {job.id} has a different retry that has not started yet; wait for it or cancel it")


def _retry_sentence(request: RetryRequest) -> str:
    source = f" from snapshot {request.restore_from}" if request.restore_from else ""
    changed = ", ".join(leaf.removeprefix("/").replace("/", ".") for leaf in leaves(request.patch)[:5])
    patched = f" with a changed {changed}" if request.patch else ""
    return f"its owner requested a retry{source}{patched}"


def _random_id() -> str:
    return _as_id(secrets.token_bytes(_ID_BYTES))


def _as_id(raw: bytes) -> str:
    return base64.b32encode(raw).decode().lower()
