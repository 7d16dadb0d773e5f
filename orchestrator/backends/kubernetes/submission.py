"""Submit an attempt: write what its pods need to a shared run directory, then create its Job, Secret and Service."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

from orchestrator import rundir
from orchestrator.backends import ship
from orchestrator.backends.kubernetes.agent import render_agent
from orchestrator.backends.kubernetes.attempt_folder import note_submission
from orchestrator.backends.kubernetes.client import Forbidden, KubernetesClient
from orchestrator.backends.kubernetes.render import Manifests, owned, render_manifests
from orchestrator.backends.kubernetes.site import (
    KUEUE,
    QUEUE_LABEL,
    WHOLE_ANNOTATION,
    KubernetesSite,
    effective_placement,
)
from orchestrator.domain.errors import BackendUnavailable, LaunchRefused
from orchestrator.domain.job.launch_plan import LaunchPlan
from orchestrator.jobfolder.folder import JobFolder
from trainer.contract import env

_RECREATE_S = 600.0


def require_fitting(plan: LaunchPlan, site: KubernetesSite, client: KubernetesClient) -> None:
    """Check that the cluster can run the plan. Raises LaunchRefused, BackendUnavailable."""
    if plan.image is None and site.image is None:
        raise LaunchRefused("the job sets no run.image, and the cluster sets no default `image`")
    if plan.workers_per_node < 1:
        raise LaunchRefused("topology.workers_per_node is gpu, and the cluster's gpus_per_node is 0")
    place = effective_placement(plan.placement, site)
    queue = place.queue
    if place.priority_class is not None and queue is None:
        words = "but neither the job nor the cluster names a queue; a priority class is Kueue's"
        raise LaunchRefused(f"placement.priority_class is {place.priority_class}, {words}")
    with suppress(Forbidden):  # without this right, skip the check
        if queue is not None and client.preferred_version(KUEUE) is None:
            words = "but the cluster has no Kueue to start the job; install Kueue, or remove the queue"
            raise LaunchRefused(f"placement.queue is {queue}, {words}")


class Submitter:
    """Submits attempts. `package` is the folder of the installed package `trainer`."""

    def __init__(
        self, site: KubernetesSite, client: KubernetesClient, *, package: Path, now: Callable[[], float]
    ) -> None:
        self._site, self._client, self._package, self._now = site, client, package, now
        self._agent_created_at = float("-inf")  # when the agent's ConfigMap was last created

    def submit(self, plan: LaunchPlan) -> dict[str, Any]:
        """Create the complete Job and return it. Idempotent, since the attempt names it. Raises the client's errors."""
        require_fitting(plan, self._site, self._client)
        folder = JobFolder(self._site.service_root, plan.key.job_id)
        try:
            workdir = self._prepare(plan, folder)
        except OSError as error:
            raise BackendUnavailable(f"cannot write the run directory of {plan.key}: {error}") from error
        self._create_agent_map()
        job = self._create(render_manifests(plan, self._site, workdir=workdir))
        with suppress(OSError):  # the Job's name finds it too
            note_submission(folder, plan.key.number, job["metadata"]["uid"])
        return job

    def _prepare(self, plan: LaunchPlan, folder: JobFolder) -> str:
        """Write what the pods need to a shared run directory. Returns the workdir's path in the pods."""
        site = self._site
        rundir.write_launch(folder, plan.key.number, plan.policy, replicas=plan.max_nodes)
        if not site.shared:
            return plan.workdir
        if site.agent_dir is not None:
            ship.ship_agent(self._package, site.service_root)
        return self._workdir(plan, folder)

    def _workdir(self, plan: LaunchPlan, folder: JobFolder) -> str:
        pin = ship.Pin(folder, f"workdir-{plan.shared_environment[env.RETRY]}.json")
        return self._site.workdirs.provide(Path(plan.workdir), pin=pin)

    def _create_agent_map(self) -> None:
        """Create the agent's ConfigMap, and again later in case it was deleted."""
        name = self._site.agent_map
        if name is not None and self._now() - self._agent_created_at >= _RECREATE_S:
            packed = ship.pack_agent(self._package)
            with suppress(FileExistsError):
                self._client.create("configmaps", render_agent(name, self._site.namespace, packed))
            self._agent_created_at = self._now()

    def _create(self, manifests: Manifests) -> dict[str, Any]:
        """Create the Job suspended, so that no pod starts before its Secret and Service exist."""
        name = manifests.job["metadata"]["name"]
        try:
            job, _ = self._client.create("jobs", manifests.job)
            fresh = True
        except FileExistsError as error:
            found = self._client.job(name)
            if found is None or found["metadata"].get("deletionTimestamp"):
                raise BackendUnavailable(f"Job {name} is being deleted; it will be created again") from error
            job, fresh = found, False
        if WHOLE_ANNOTATION in (job["metadata"].get("annotations") or {}):
            return job
        try:
            self._add_owned(manifests, job, fresh=fresh)
            waits_for_kueue = QUEUE_LABEL in (job["metadata"].get("labels") or {})
            patch: dict[str, Any] = {"metadata": {"annotations": {WHOLE_ANNOTATION: "true"}}}
            if not waits_for_kueue:
                patch["spec"] = {"suspend": False}
            return self._client.patch_job(name, patch)
        except LaunchRefused:
            self._client.delete_job(name)  # a refused attempt is not retried
            raise
        except Forbidden:
            with suppress(BackendUnavailable):  # the Job stays suspended, and an abandoned attempt cannot be claimed
                self._client.delete_job(name)
            raise

    def _add_owned(self, manifests: Manifests, job: dict[str, Any], *, fresh: bool) -> None:
        """Create Secret and Service.

        If they exist beside a fresh Job, a deleted Job of the same name owns them. They will be collected with it, and
        pods that rely on them would wait forever.
        """
        name = job["metadata"]["name"]
        for resource, manifest in (("secrets", manifests.secret), ("services", manifests.service)):
            try:
                self._client.create(resource, owned(manifest, job))
            except FileExistsError as error:
                if not fresh:
                    continue  # an interrupted submission created it
                self._client.delete_job(name)
                words = f"{resource} of an earlier Job {name} are still being removed; the Job will be created again"
                raise BackendUnavailable(words) from error
