"""Write side: submit, plan, cancel, retry. Records what is desired and an event; never touches a status.

Every command is idempotent: the same wish again changes nothing and gets the same answer.
"""

from __future__ import annotations

import base64
import hashlib
import json
import secrets
import threading
from collections.abc import Callable, Mapping
from dataclasses import replace

from orchestrator.clusters import Cluster
from orchestrator.domain.errors import Conflict, FieldProblem, InvalidSpec
from orchestrator.domain.event import Event, EventKind
from orchestrator.domain.job import Desired, Job, JobState
from orchestrator.domain.spec import JobSpec
from orchestrator.domain.validation import leaves, merge_patch, parse_spec
from orchestrator.ports import Clock, JobStore
from orchestrator.preview import render_plan
from orchestrator.submission import check_submission, find_cluster, make_absolute
from orchestrator.wire import PlanView, RetryRequest
from trainer.contract import layout
from trainer.contract.manifest import parse_snapshot_name

_FIXED = ("name", "project", "cluster")  # what a retry cannot change: the job is filed and placed by it


class Commands:
    """`wake` tells the supervisor that there is something new; it must not block."""

    def __init__(self, jobs: JobStore, clusters: Mapping[str, Cluster], clock: Clock, wake: Callable[[], None]) -> None:
        self._jobs = jobs
        self._clusters = clusters
        self._clock = clock
        self._wake = wake
        self._wishing = threading.Lock()  # a wish is read, changed and written

    def submit(self, spec: JobSpec, idempotency_key: str | None) -> tuple[Job, bool]:
        """Store a job; False when this key and spec stored it before. Raises InvalidSpec, Conflict."""
        if idempotency_key is not None:
            # Before the checks: what was there at the first call may be gone by now, and the answer is the same.
            repeated = self._jobs.repeated(spec.project, idempotency_key, digest(spec))
            if repeated is not None:
                return repeated, False
        stored = self._checked(spec)
        now = self._clock.now()
        job = Job(
            id=f"{spec.name}-{_random_id()}",
            spec=stored,
            state=JobState.QUEUED,
            reason=f"waits for its turn on cluster {spec.cluster}",
            desired=Desired(),
            created_at=now,
            updated_at=now,
        )
        sentence = f"submitted to cluster {spec.cluster}, project {spec.project}"
        event = Event(at=now, kind=EventKind.JOB_SUBMITTED, sentence=sentence)
        answer = self._jobs.add(job, idempotency_key=idempotency_key, digest=digest(spec), event=event)
        self._wake()
        return answer, answer.id == job.id

    def plan(self, spec: JobSpec) -> PlanView:
        """What a submission would start. Raises InvalidSpec."""
        stored = self._checked(spec)
        return render_plan(stored, find_cluster(stored, self._clusters), self._clock.now())

    def cancel(self, job_id: str) -> Job:
        """Wish the job's end. Raises NotFound, and Conflict for a job that ended otherwise."""
        with self._wishing:
            job = self._jobs.get(job_id)
            retrying = job.desired.retry_number > job.retries_done
            if (job.state is JobState.CANCELLED or job.desired.cancelled) and not retrying:
                return job
            if job.state.terminal and not retrying:
                raise Conflict(f"job {job_id} has ended {job.state} already; there is nothing to cancel")
            # A retry that has not begun is withdrawn; one that begins at this moment meets `cancelled`.
            desired = Desired(cancelled=True, retry_number=job.retries_done if retrying else job.desired.retry_number)
            sentence = "the retry was withdrawn before it began" if retrying else "its owner asked to cancel it"
            return self._wish(job, desired, EventKind.CANCEL_REQUESTED, sentence)

    def retry(self, job_id: str, request: RetryRequest) -> Job:
        """Wish one more attempt, of a running or ended job. Raises NotFound, Conflict, InvalidSpec."""
        with self._wishing:
            job = self._jobs.get(job_id)
            if job.desired.cancelled and not job.state.terminal:
                raise Conflict(f"job {job_id} is being cancelled; retry it when it has ended")
            spec = self._patched(job, request)
            self._check_restore(job, request.restore_from)
            if job.desired.retry_number > job.retries_done:
                return _same_retry(job, request, spec)
            desired = Desired(retry_number=job.retries_done + 1, restore_from=request.restore_from)
            return self._wish(
                job, desired, EventKind.RETRY_REQUESTED, _retry_sentence(request), spec=spec, patch=request.patch
            )

    def _wish(
        self,
        job: Job,
        desired: Desired,
        kind: EventKind,
        sentence: str,
        *,
        spec: JobSpec | None = None,
        patch: object = None,
    ) -> Job:
        evidence: dict[str, object] = {"state": job.state.value}
        if desired.restore_from is not None:
            evidence["restore_from"] = desired.restore_from
        if patch:
            evidence["changed"] = leaves(patch)  # names only: values may be confidential
        event = Event(at=self._clock.now(), kind=kind, sentence=sentence, evidence=evidence)
        changed = None if spec == job.spec else spec
        self._jobs.wish(job.id, desired, event, spec=changed)
        self._wake()
        return replace(job, desired=desired, spec=changed or job.spec)

    def _checked(self, spec: JobSpec) -> JobSpec:
        cluster = find_cluster(spec, self._clusters)
        stored = make_absolute(spec)
        check_submission(stored, cluster)
        return stored

    def _patched(self, job: Job, request: RetryRequest) -> JobSpec:
        if not request.patch:
            return job.spec
        document = job.spec.model_dump(mode="json", by_alias=True)
        spec = parse_spec_patch(document, request.patch)
        try:
            return self._checked(spec)
        except InvalidSpec as error:
            raise InvalidSpec([FieldProblem(f"/patch{p.pointer}", p.message) for p in error.problems]) from error

    def _check_restore(self, job: Job, name: str | None) -> None:
        if name is None:
            return
        if parse_snapshot_name(name) is None:
            message = f"is {name!r}, must be a snapshot's name as 'step-00000120-a1-g1'"
            raise InvalidSpec([FieldProblem("/restore_from", message)])
        folder = find_cluster(job.spec, self._clusters).snapshots_dir(job) / name
        if not (folder / layout.MANIFEST).is_file():
            raise InvalidSpec([FieldProblem("/restore_from", f"job {job.id} has no committed snapshot {name}")])


def digest(spec: JobSpec) -> str:
    """What makes two submissions the same one: SHA-256 of the canonical spec."""
    document = spec.model_dump(mode="json", by_alias=True)
    return hashlib.sha256(json.dumps(document, sort_keys=True, separators=(",", ":")).encode()).hexdigest()


def parse_spec_patch(document: Mapping[str, object], patch: Mapping[str, object]) -> JobSpec:
    """The spec with a merge patch applied. Raises InvalidSpec with pointers into the request."""
    fixed = [
        FieldProblem(f"/patch/{name}", "cannot change in a retry; submit a new job")
        for name in _FIXED
        if name in patch and patch[name] != document[name]
    ]
    if fixed:
        raise InvalidSpec(fixed)
    return parse_spec(merge_patch(document, patch), prefix="/patch")


def _same_retry(job: Job, request: RetryRequest, spec: JobSpec) -> Job:
    if request.restore_from == job.desired.restore_from and spec == job.spec:
        return job
    raise Conflict(f"job {job.id} has a retry with other terms that has not begun yet; wait for it or cancel it")


def _retry_sentence(request: RetryRequest) -> str:
    source = f" from snapshot {request.restore_from}" if request.restore_from else ""
    changed = ", ".join(leaf.removeprefix("/").replace("/", ".") for leaf in leaves(request.patch)[:5])
    patched = f" with a changed {changed}" if request.patch else ""
    return f"its owner asked for another attempt{source}{patched}"


def _random_id() -> str:
    return base64.b32encode(secrets.token_bytes(5)).decode().lower()
