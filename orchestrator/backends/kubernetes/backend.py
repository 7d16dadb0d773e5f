"""The Backend port on Kubernetes. Watchers cache objects, `attempt_folder` reads traces, and `sight` judges."""

from __future__ import annotations

import threading
import time
from collections import defaultdict
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from functools import partial
from pathlib import Path
from typing import Any

from orchestrator.backends.kubernetes.attempt_folder import (
    keep_last_words,
    note_beginning,
    note_cancellation,
    read_traces,
)
from orchestrator.backends.kubernetes.client import SILENT, Forbidden, KubernetesClient, Selection
from orchestrator.backends.kubernetes.kueue import Workload, by_job, parse_workload
from orchestrator.backends.kubernetes.logs import Followed, LogKeeper
from orchestrator.backends.kubernetes.mirror import Mirror
from orchestrator.backends.kubernetes.objects import (
    JobObject,
    NodeObject,
    PodObject,
    WarningObject,
    parse_job,
    parse_node,
    parse_pod,
    parse_warning,
)
from orchestrator.backends.kubernetes.render import render_manifests, render_name, render_native
from orchestrator.backends.kubernetes.sight import SightContext, View, sight
from orchestrator.backends.kubernetes.site import (
    CONTAINER,
    MANAGER,
    MANAGER_LABEL,
    KubernetesSite,
)
from orchestrator.backends.kubernetes.states import is_silent
from orchestrator.backends.kubernetes.submission import Submitter, require_fitting
from orchestrator.backends.kubernetes.watcher import Watcher, WatchTimes
from orchestrator.domain.errors import BackendBusy, BackendUnavailable, LaunchRefused
from orchestrator.domain.job.attempt import AttemptKey
from orchestrator.domain.job.launch_plan import LaunchPlan
from orchestrator.domain.job.native_request import NativeRequest
from orchestrator.domain.observation.observation import Presence, Sighting
from orchestrator.jobfolder.folder import JobFolder
from trainer.contract import layout
from trainer.contract.pod import parse_last_words

_OURS = f"{MANAGER_LABEL}={MANAGER}"
_ALWAYS_WATCHED = ("jobs", "pods", "warnings", "preemptions", "nodes")
_FORCE_GRACE_S = 1  # for a forced deletion; 0 would drop the pod's object without ending the pod


@dataclass(slots=True)
class _Memory:
    """A cache that may be lost at any time. It saves calls and remembers which Jobs the service deleted."""

    cancelled: set[AttemptKey] = field(default_factory=set)  # even those whose folder could not be written
    began: set[AttemptKey] = field(default_factory=set)


class KubernetesBackend:
    """Jobs outlive the service. A restarted service finds them by name. Threads start with the first `observe`."""

    def __init__(
        self,
        site: KubernetesSite,
        client: KubernetesClient,
        *,
        package: Path,
        times: WatchTimes = WatchTimes(),  # noqa: B008
        first_answer_s: float = 30.0,
        now: Callable[[], float] = time.time,
    ) -> None:
        self._site, self._client = site, client
        self._first_answer_s, self._now = first_answer_s, now
        self._memory = _Memory()
        self._submitter = Submitter(site, client, package=package, now=now)
        self._logs = LogKeeper(client)
        self._jobs: Mirror[JobObject] = Mirror(parse_job)
        self._pods: Mirror[PodObject] = Mirror(partial(parse_pod, container=CONTAINER), keeps_removed=True)
        self._warnings: Mirror[WarningObject] = Mirror(parse_warning)
        self._preemptions: Mirror[WarningObject] = Mirror(parse_warning)
        self._nodes: Mirror[NodeObject] = Mirror(parse_node)
        self._workloads: Mirror[Workload] = Mirror(parse_workload)
        selections: dict[str, tuple[Selection, Mirror[Any]]] = {
            "jobs": (Selection(resource="jobs", labels=_OURS), self._jobs),
            "pods": (Selection(resource="pods", labels=_OURS), self._pods),
            "warnings": (Selection(resource="events", fields="type=Warning"), self._warnings),
            "preemptions": (Selection(resource="events", fields="reason=Preempted"), self._preemptions),
            "nodes": (Selection(resource="nodes", is_optional=True), self._nodes),
            "workloads": (Selection(resource="workloads", is_optional=True), self._workloads),
        }
        self._watchers = {
            name: Watcher(client, selection, mirror, times=times, now=now)
            for name, (selection, mirror) in selections.items()
        }
        self._started: set[str] = set()
        self._starting = threading.Lock()  # the supervisor and requests may start watchers at the same moment

    def close(self) -> None:
        """Close the watches and the log streams."""
        self._logs.close()
        for watcher in self._watchers.values():
            watcher.close()
        self._client.close()

    def render(self, plan: LaunchPlan) -> NativeRequest:
        return render_native(render_manifests(plan, self._site, workdir=plan.workdir))

    def check(self, plan: LaunchPlan) -> Sequence[str]:
        """Return the cluster's objections from a dry run. Empty if it would accept the Job."""
        try:
            require_fitting(plan, self._site, self._client)
            manifests = render_manifests(plan, self._site, workdir=plan.workdir)
            _, warnings = self._client.create("jobs", manifests.job, dry_run=True)
        except FileExistsError:
            return ()
        except LaunchRefused as error:
            return (f"the cluster would refuse the job: {error}",)
        except BackendBusy as error:
            return (f"the job would wait: {error}",)
        except BackendUnavailable as error:
            return (f"could not ask the cluster whether it accepts the job: {error}",)
        return tuple(f"the cluster warns: {each}" for each in warnings)

    def submit(self, plan: LaunchPlan) -> str:
        """Create the Job. Idempotent: the attempt names it, and an interrupted submission is completed."""
        job = self._submitter.submit(plan)
        self._jobs.put(job)
        return f"{self._site.namespace}/{job['metadata']['name']}"

    def observe(self, launched: Mapping[AttemptKey, int]) -> Mapping[AttemptKey, Sighting]:
        self._start(_ALWAYS_WATCHED)
        if not launched:
            return {}
        self._require_fresh()
        jobs = {job.name: job for job in self._jobs.objects()}  # read before the pods, so that no Job lacks its pods
        pods = self._pods_by_job()
        nodes = self._nodes_now()
        warnings = tuple(self._warnings.objects()) if self._watchers["warnings"].problem() is None else ()
        workloads = self._workloads_now(jobs.values())
        seen: dict[AttemptKey, Sighting] = {}
        for key, replicas in launched.items():
            name = render_name(key)
            job = jobs.get(name)
            workload = None if workloads is None or job is None else workloads.get(job.uid)
            view = View(
                job=job,
                pods=tuple(pods.get(name, ())),
                nodes=nodes,
                warnings=warnings,
                workload=workload,
                has_workloads=workloads is not None,
            )
            try:
                seen[key] = self._sight(key, replicas, view)
            except OSError as error:
                words = f"cannot read or write the run directory: {error}"
                seen[key] = Sighting(key=key, presence=Presence.UNKNOWN, evidence=words)
        self._forget(launched.keys(), pods)
        return seen

    def cancel(self, key: AttemptKey, *, force: bool) -> None:
        """Delete the Job. Its pods get SIGTERM and their grace period.

        With `force`, and on nodes that do not answer, the grace period is one second, since no kubelet would honor a
        longer one there. A Job that the cache does not show is deleted too, because it may be new.
        """
        name = render_name(key)
        self._memory.cancelled.add(key)
        with suppress(OSError):  # an attempt can be cancelled while the disk fails
            note_cancellation(JobFolder(self._site.service_root, key.job_id), key.number)
        self._client.delete_job(name)
        self._start(_ALWAYS_WATCHED)
        nodes = self._nodes_now()
        for pod in self._pods_by_job().get(name, ()):
            if not pod.removed and pod.phase not in ("Succeeded", "Failed") and (force or is_silent(pod, nodes)):
                self._client.delete_pod(pod.name, grace_s=_FORCE_GRACE_S)

    def slots(self) -> None:
        """Return no limit, since the cluster queues. Raises BackendUnavailable while the API server is silent."""
        if self._started:
            self._require_fresh()

    def _start(self, names: Collection[str]) -> None:
        with self._starting:
            for name in set(names) - self._started:
                self._watchers[name].start()
                self._started.add(name)

    def _require_fresh(self) -> None:
        """Raise BackendUnavailable while the cached Jobs and pods are not fresh."""
        deadline = time.monotonic() + self._first_answer_s
        for name in _ALWAYS_WATCHED:
            self._watchers[name].first_answer.wait(max(0.0, deadline - time.monotonic()))
        watchers = [self._watchers[name] for name in ("jobs", "pods")]
        for watcher in watchers:
            problem = watcher.problem()
            if problem is not None and watcher.forbidden:
                raise Forbidden(problem)
            if problem is not None:
                since = render_moment(max(each.answered_at for each in watchers), self._now())
                raise BackendUnavailable(
                    f"the Kubernetes API server has not answered since {since}: {problem.removeprefix(f'{SILENT}: ')}"
                )

    def _pods_by_job(self) -> dict[str, list[PodObject]]:
        messages = {event.name: event.message for event in self._preemptions.objects()}
        pods: defaultdict[str, list[PodObject]] = defaultdict(list)
        for pod in (*(replace(pod, removed=True) for pod in self._pods.removed()), *self._pods.objects()):
            known = pod if pod.name not in messages else replace(pod, preempted=messages[pod.name])
            pods[pod.job or ""].append(known)
        return pods

    def _nodes_now(self) -> dict[str, NodeObject] | None:
        """Return the nodes by name. None if they cannot be read; the pods' own conditions then decide."""
        if self._watchers["nodes"].problem() is not None:
            return None
        return {node.name: node for node in self._nodes.objects()}

    def _workloads_now(self, jobs: Iterable[JobObject]) -> dict[str, Workload] | None:
        """Return Kueue's Workloads by the uid of their Job. None if no Job is queued, or they cannot be read."""
        if not any(job.queued_by_kueue for job in jobs):
            return None
        self._start(("workloads",))
        watcher = self._watchers["workloads"]
        watcher.first_answer.wait(self._first_answer_s)
        return None if watcher.problem() is not None else by_job(self._workloads.objects())

    def _sight(self, key: AttemptKey, replicas: int, view: View) -> Sighting:
        job = JobFolder(self._site.service_root, key.job_id)
        if not self._site.shared:
            self._keep_records(key, job, view.pods)
        traces = read_traces(job, key, replicas)
        ours = traces.cancelled or key in self._memory.cancelled
        sighting = sight(key, view, traces, self._context(ours=ours))
        if sighting.presence is Presence.RUNNING and key not in self._memory.began:
            note_beginning(job, key.number)
            self._memory.began.add(key)
        return sighting

    def _keep_records(self, key: AttemptKey, job: JobFolder, pods: Sequence[PodObject]) -> None:
        """Keep the logs and exit records of pods that share no folder with the service."""
        for pod in pods:
            container = pod.container
            if pod.index is None or container is None or not (container.running or container.terminated is not None):
                continue
            words = parse_last_words(container.message)
            if words is not None and words.replica == pod.index:
                keep_last_words(job, key.number, words)
            over = pod.removed or container.terminated is not None
            place = layout.replica_dir(Path(), key.number, pod.index)
            self._logs.want(Followed(pod.uid, pod.name, job, place, ended=over))

    def _forget(self, wanted: Collection[AttemptKey], pods: Mapping[str, Sequence[PodObject]]) -> None:
        """Drop what is cached for attempts that are no longer observed."""
        names = {render_name(key) for key in wanted}
        self._pods.forget([pod.uid for name, each in pods.items() if name not in names for pod in each if pod.removed])
        self._memory.cancelled.intersection_update(wanted)

    def _context(self, *, ours: bool) -> SightContext:
        return SightContext(
            now=self._now(),
            settle_s=self._site.settle_s,
            image_patience_s=self._site.image_patience_s,
            ours=ours,
        )


def render_moment(at: float, now: float) -> str:
    """Render a time in UTC, with the date unless it is today. Both arguments are seconds since the epoch."""
    then, today = datetime.fromtimestamp(at, UTC), datetime.fromtimestamp(now, UTC)
    return f"{then:%H:%M} UTC" if then.date() == today.date() else f"{then:%Y-%m-%d %H:%M} UTC"
