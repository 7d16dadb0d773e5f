"""A control loop that plays Kueue for the Jobs of one LocalQueue: it makes Workloads, admits, evicts and finishes them.

For clusters that have the resources of Kueue and not its controller. It counts pods instead of resources.
"""

from __future__ import annotations

import threading
from collections.abc import Iterator
from datetime import UTC, datetime
from typing import Any

import httpx

from orchestrator.backends.kubernetes.site import MIN_PARALLELISM_ANNOTATION, PRIORITY_LABEL, QUEUE_LABEL
from tests.kubernetes.live.cluster import Cluster

Json = dict[str, Any]
_PERIOD_S = 0.5
_MERGE = "merge-patch+json"
_EXPECTED = (404, 409)  # a Job may be deleted at any moment, and updates may conflict


class KueueLoop:
    """Runs in a thread between `start` and `close`. `error` is what ended it early."""

    def __init__(self, cluster: Cluster, *, group: str, queue: str, pods: int, priorities: dict[str, int]) -> None:
        self._cluster, self._group, self._queue, self._pods = cluster, group, queue, pods
        self._priorities = priorities
        self._closing = threading.Event()
        self._thread = threading.Thread(target=self._run, name="kueue", daemon=True)
        self.error: Exception | None = None

    def start(self) -> None:
        self._thread.start()

    def close(self) -> None:
        self._closing.set()
        self._thread.join(60)
        if self.error is not None:
            raise self.error

    def evict(self, job: Json, reason: str, message: str) -> None:
        """Evict a Job's Workload and stop the Job. It waits for a minute before it is admitted again."""
        workload = next(each for each in self._workloads() if _owner(each) == job["metadata"]["uid"])
        self._evict(workload, job, reason, message, pause_s=60)

    def _run(self) -> None:
        while not self._closing.wait(_PERIOD_S):
            try:
                self._step()
            except httpx.HTTPStatusError as error:
                if error.response.status_code not in _EXPECTED:
                    self.error = error
                    return

    def _step(self) -> None:
        jobs = {job["metadata"]["uid"]: job for job in self._queued_jobs()}
        workloads = {_owner(each): each for each in self._workloads()}
        for uid in jobs.keys() - workloads.keys():
            self._create(jobs[uid])
        pairs = [(each, jobs[uid]) for uid, each in workloads.items() if uid in jobs and not _holds(each, "Finished")]
        for workload, job in pairs:
            if _is_over(job):
                self._note(workload, Finished=("True", "Succeeded", "Job finished successfully"))
        live = [(workload, job) for workload, job in pairs if not _is_over(job)]
        self._admit_in_order(sorted(live, key=lambda pair: (-pair[0]["spec"]["priority"], _created(pair[0]))))

    def _admit_in_order(self, live: list[tuple[Json, Json]]) -> None:
        admitted = [(workload, job) for workload, job in live if _holds(workload, "Admitted")]
        free = self._pods - sum(_count(workload) for workload, _ in admitted)
        for workload, job in live:
            if _holds(workload, "Admitted") or _pauses(workload) or not job["spec"]["suspend"]:
                continue
            count, least = job["spec"]["completions"], int(_annotations(job).get(MIN_PARALLELISM_ANNOTATION) or 0)
            granted = count if count <= free else free if 0 < least <= free else 0
            if granted:
                self._admit(workload, job, granted)
                free -= granted
                continue
            lower = [pair for pair in admitted if pair[0]["spec"]["priority"] < workload["spec"]["priority"]]
            for victim, its_job in lower[:1]:
                self._evict(victim, its_job, "Preempted", "Preempted to accommodate a workload")
            words = f"insufficient unused quota for pods in flavor default, {count - free} more needed"
            self._note(workload, QuotaReserved=("False", "Pending", words))

    def _create(self, job: Json) -> None:
        meta, spec = job["metadata"], job["spec"]
        owner = {"apiVersion": "batch/v1", "kind": "Job", "name": meta["name"], "uid": meta["uid"], "controller": True}
        template = {"metadata": {"labels": meta["labels"]}, "spec": spec["template"]["spec"]}
        body = {
            "apiVersion": self._group.removeprefix("apis/"),
            "kind": "Workload",
            "metadata": {"name": f"job-{meta['name']}", "ownerReferences": [owner]},
            "spec": {
                "queueName": self._queue,
                "priority": self._priorities.get(meta["labels"].get(PRIORITY_LABEL, ""), 0),
                "podSets": [{"name": "main", "count": spec["completions"], "template": template}],
            },
        }
        self._cluster.ask("POST", self._path(), body)

    def _admit(self, workload: Json, job: Json, count: int) -> None:
        assignment = {"name": "main", "count": count, "flavors": {"pods": "default"}, "resourceUsage": {"pods": count}}
        self._note(
            workload,
            status={"admission": {"clusterQueue": self._queue, "podSetAssignments": [assignment]}},
            QuotaReserved=("True", "QuotaReserved", "Quota reserved"),
            Admitted=("True", "Admitted", "The workload is admitted"),
            Evicted=("False", "QuotaReserved", "Previously evicted"),
        )
        self._patch_job(job, {"suspend": False, "parallelism": count, "completions": count})

    def _evict(self, workload: Json, job: Json, reason: str, message: str, *, pause_s: int = 0) -> None:
        again = datetime.fromtimestamp(datetime.now(UTC).timestamp() + pause_s, UTC)
        requeue = {"requeueState": {"count": 1, "requeueAt": _text(again)}} if pause_s else {}
        self._note(
            workload,
            status={"admission": None, **requeue},
            Evicted=("True", reason, message),
            QuotaReserved=("False", "Pending", message),
            Admitted=("False", "NoReservation", message),
        )
        size = workload["spec"]["podSets"][0]["count"]
        self._patch_job(job, {"suspend": True})
        self._patch_job(job, {"parallelism": size, "completions": size})

    def _note(self, workload: Json, *, status: Json | None = None, **conditions: tuple[str, str, str]) -> None:
        """Set conditions and other fields of the status, if they differ."""
        known = {each["type"]: each for each in (workload.get("status") or {}).get("conditions") or ()}
        fresh = {
            kind: {"type": kind, "status": state, "reason": reason, "message": message}
            for kind, (state, reason, message) in conditions.items()
            if [(known.get(kind) or {}).get(name) for name in ("status", "reason", "message")]
            != [state, reason, message]
        }
        if fresh or status:
            stamped = {kind: {**each, "lastTransitionTime": _text(datetime.now(UTC))} for kind, each in fresh.items()}
            body = {"status": {**(status or {}), "conditions": list({**known, **stamped}.values())}}
            self._cluster.ask("PATCH", f"{self._path()}/{workload['metadata']['name']}/status", body, kind=_MERGE)

    def _patch_job(self, job: Json, spec: Json) -> None:
        path = f"/apis/batch/v1/namespaces/{self._cluster.namespace}/jobs/{job['metadata']['name']}"
        self._cluster.ask("PATCH", path, {"spec": spec}, kind=_MERGE)

    def _queued_jobs(self) -> Iterator[Json]:
        for job in self._cluster.items("jobs", "apis/batch/v1"):
            if (job["metadata"].get("labels") or {}).get(QUEUE_LABEL) == self._queue:
                yield job

    def _workloads(self) -> list[Json]:
        return self._cluster.items("workloads", self._group)

    def _path(self) -> str:
        return f"/{self._group}/namespaces/{self._cluster.namespace}/workloads"


def _owner(workload: Json) -> str:
    return str(workload["metadata"]["ownerReferences"][0]["uid"])


def _created(workload: Json) -> str:
    return str(workload["metadata"]["creationTimestamp"])


def _holds(workload: Json, kind: str) -> bool:
    conditions = (workload.get("status") or {}).get("conditions") or ()
    return any((each["type"], each["status"]) == (kind, "True") for each in conditions)


def _count(workload: Json) -> int:
    return int(workload["status"]["admission"]["podSetAssignments"][0]["count"])


def _pauses(workload: Json) -> bool:
    """Whether it is deactivated, or an eviction was too recent."""
    again = ((workload.get("status") or {}).get("requeueState") or {}).get("requeueAt")
    return workload["spec"].get("active") is False or (again is not None and again > _text(datetime.now(UTC)))


def _is_over(job: Json) -> bool:
    conditions = (job.get("status") or {}).get("conditions") or ()
    return any(each["type"] in ("Complete", "Failed") and each["status"] == "True" for each in conditions)


def _annotations(job: Json) -> Json:
    return dict(job["metadata"].get("annotations") or {})


def _text(moment: datetime) -> str:
    return f"{moment:%Y-%m-%dT%H:%M:%SZ}"
