"""Write side: submissions and wishes. Records what is desired and an event; never touches a status.

Every command is idempotent: the same wish again changes nothing and gets the same answer.
"""

from __future__ import annotations

import base64
import hashlib
import json
import secrets
from collections.abc import Callable, Collection, Mapping
from contextlib import suppress
from dataclasses import replace

from orchestrator.clusters import Cluster
from orchestrator.domain.attempt import AttemptState
from orchestrator.domain.errors import Conflict, FieldProblem, InvalidSpec, NotFound
from orchestrator.domain.event import Event, EventKind
from orchestrator.domain.job import Desired, Job, JobState
from orchestrator.domain.spec import JobSpec
from orchestrator.domain.validation import leaves, merge_patch, parse_spec
from orchestrator.domain.wish import Wish, wish_cancel, wish_resume, wish_snapshot, wish_suspend
from orchestrator.ports import Clock, JobReader, JobStore
from orchestrator.preview import render_plan
from orchestrator.submission import check_submission, find_cluster, make_absolute
from orchestrator.wire import PlanView, RetryRequest
from trainer.contract import layout
from trainer.contract.manifest import parse_snapshot_name

_FIXED = ("name", "project", "cluster")  # what a retry cannot change: the job is filed and placed by it


class Commands:
    """`wake` tells the supervisor that there is something new; it must not block."""

    def __init__(
        self,
        jobs: JobStore,
        reader: JobReader,
        clusters: Mapping[str, Cluster],
        clock: Clock,
        wake: Callable[[], None],
        *,
        webhooks: Collection[str] = (),
    ) -> None:
        self._jobs = jobs
        self._reader = reader
        self._clusters = clusters
        self._clock = clock
        self._wake = wake
        self._webhooks = webhooks

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
        return self._wish(job_id, wish_cancel)

    def suspend(self, job_id: str) -> Job:
        """Wish that the job lets go of its place, at a snapshot, until it is resumed. Raises NotFound, Conflict."""
        return self._wish(job_id, wish_suspend)

    def resume(self, job_id: str) -> Job:
        """Withdraw the suspension. Raises NotFound, Conflict."""
        return self._wish(job_id, wish_resume)

    def snapshot(self, job_id: str) -> Job:
        """Wish one more snapshot of the running attempt. Raises NotFound, Conflict.

        Two calls before the agents have heard of the first are one wish.
        """
        told = self._told(job_id)
        return self._wish(job_id, lambda job: wish_snapshot(job, told))

    def scale(self, job_id: str, nodes: str) -> Job:
        """Wish another number or range of nodes. Raises NotFound, Conflict, InvalidSpec."""

        def scaled(job: Job) -> Wish | None:
            if job.state.terminal:
                raise Conflict(f"job {job_id} has ended {job.state}; retry it with a patch of topology.nodes")
            spec = self._scaled(job.spec, nodes)
            sentence = f"its owner asked for {spec.topology.nodes} nodes instead of {job.spec.topology.nodes}"
            return None if spec == job.spec else Wish(job.desired, EventKind.SCALE_REQUESTED, sentence, spec=spec)

        return self._wish(job_id, scaled)

    def retry(self, job_id: str, request: RetryRequest) -> Job:
        """Wish one more attempt, of a running or ended job. Raises NotFound, Conflict, InvalidSpec."""

        def retried(job: Job) -> Wish | None:
            if job.desired.cancelled and not job.state.terminal:
                raise Conflict(f"job {job_id} is being cancelled; retry it when it has ended")
            spec = self._patched(job, request)
            self._check_restore(job, request.restore_from)
            if job.desired.retry_number > job.retries_done:
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
            return Wish(desired, EventKind.RETRY_REQUESTED, _retry_sentence(request), spec=spec, evidence=evidence)

        return self._wish(job_id, retried)

    def _wish(self, job_id: str, decide: Callable[[Job], Wish | None]) -> Job:
        """Read, decide, and write where no other wish came in between; else again. None: it is wished already."""
        while True:
            job = self._jobs.get(job_id)
            wish = decide(job)
            if wish is None:
                return job
            desired = replace(wish.desired, number=job.desired.number + 1)
            evidence = {"state": job.state.value, **wish.evidence}
            event = Event(at=self._clock.now(), kind=wish.kind, sentence=wish.sentence, evidence=evidence)
            changed = None if wish.spec == job.spec else wish.spec
            if self._jobs.wish(job_id, desired, event, spec=changed):
                self._wake()
                return replace(job, desired=desired, spec=changed or job.spec)

    def _told(self, job_id: str) -> int | None:
        """How many snapshots the agents of the live attempt were asked for; None when nothing runs."""
        attempt = self._reader.standing(job_id).attempt
        return None if attempt is None or attempt.state is not AttemptState.RUNNING else attempt.snapshots_told

    def _scaled(self, spec: JobSpec, nodes: str) -> JobSpec:
        """The spec with another number of nodes. Raises InvalidSpec that points at the request's one field."""
        document = spec.model_dump(mode="json", by_alias=True)
        try:
            scaled = parse_spec(merge_patch(document, {"topology": {"nodes": nodes}}))
            return self._checked(scaled, kept=spec.notify)
        except InvalidSpec as error:
            told = [p.message if p.pointer.startswith("/topology") else str(error) for p in error.problems]
            raise InvalidSpec([FieldProblem("/nodes", message) for message in dict.fromkeys(told)]) from error

    def _checked(
        self, spec: JobSpec, job_id: str | None = None, *, prefix: str = "", kept: Collection[str] = ()
    ) -> JobSpec:
        """The spec as it is stored. Raises InvalidSpec, whose pointers begin with `prefix`.

        Webhooks of an accepted spec are `kept` although the configuration may have lost them since.
        """
        try:
            stored = make_absolute(spec)
            check_submission(stored, find_cluster(spec, self._clusters))
            self._check_dependencies(stored, job_id)
            self._check_webhooks(stored, kept)
        except InvalidSpec as error:
            raise InvalidSpec([FieldProblem(prefix + p.pointer, p.message) for p in error.problems]) from error
        return stored

    def _check_dependencies(self, spec: JobSpec, job_id: str | None) -> None:
        """What is waited for has to exist, and not to wait for the job itself, however indirectly."""
        problems = []
        for index, name in enumerate(spec.after):
            try:
                if self._waits_for(self._jobs.get(name), job_id):
                    problems.append(FieldProblem(f"/after/{index}", f"job {name} waits for this one"))
            except NotFound:
                problems.append(FieldProblem(f"/after/{index}", f"there is no job {name}"))
        if problems:
            raise InvalidSpec(problems)

    def _waits_for(self, job: Job, other: str | None) -> bool:
        """Whether one job is the other or waits for it; for a new one (None) nobody waits yet."""
        ahead, seen = [job], {job.id}
        while ahead and other is not None:
            each = ahead.pop()
            if each.id == other:
                return True
            new = [name for name in each.spec.after if name not in seen]
            seen.update(new)
            for name in new:
                with suppress(NotFound):
                    ahead.append(self._jobs.get(name))
        return False

    def _check_webhooks(self, spec: JobSpec, kept: Collection[str]) -> None:
        there_are = f"known: {', '.join(sorted(self._webhooks))}" if self._webhooks else "none is configured"
        unknown = [
            FieldProblem(f"/notify/{index}", f"there is no webhook {name!r}; {there_are}")
            for index, name in enumerate(spec.notify)
            if name not in self._webhooks and name not in kept
        ]
        if unknown:
            raise InvalidSpec(unknown)

    def _patched(self, job: Job, request: RetryRequest) -> JobSpec:
        if not request.patch:
            return job.spec
        document = job.spec.model_dump(mode="json", by_alias=True)
        return self._checked(parse_spec_patch(document, request.patch), job.id, prefix="/patch", kept=job.spec.notify)

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


def _require_same_retry(job: Job, request: RetryRequest, spec: JobSpec) -> None:
    if request.restore_from == job.desired.restore_from and spec == job.spec:
        return
    raise Conflict(f"job {job.id} has a retry with other terms that has not begun yet; wait for it or cancel it")


def _retry_sentence(request: RetryRequest) -> str:
    source = f" from snapshot {request.restore_from}" if request.restore_from else ""
    changed = ", ".join(leaf.removeprefix("/").replace("/", ".") for leaf in leaves(request.patch)[:5])
    patched = f" with a changed {changed}" if request.patch else ""
    return f"its owner asked for another attempt{source}{patched}"


def _random_id() -> str:
    return base64.b32encode(secrets.token_bytes(5)).decode().lower()
