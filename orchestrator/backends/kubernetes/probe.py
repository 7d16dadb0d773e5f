"""Run a Job of two pods that checks what jobs will need: Python, torch, the run directory, the network, the service.

The pods have a job's image, mounts, user and overlay. The findings become sentences for the cluster's administrator.
The Job is deleted afterwards; an interrupted one expires.
"""

from __future__ import annotations

import json
import secrets
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

from torchx.specs import AppDef, Role

from orchestrator.backends.kubernetes.client import Expired, KubernetesClient, Selection
from orchestrator.backends.kubernetes.kueue import Workload, by_job, parse_workload
from orchestrator.backends.kubernetes.objects import PodObject, WarningObject, parse_job, parse_pod, parse_warning
from orchestrator.backends.kubernetes.render import Manifest, Manifests, owned, render_manifests
from orchestrator.backends.kubernetes.sight import SightContext, Traces, View, sight
from orchestrator.backends.kubernetes.site import (
    ATTEMPT_LABEL,
    CONTAINER,
    QUEUE_LABEL,
    WHOLE_ANNOTATION,
    KubernetesSite,
)
from orchestrator.domain.errors import BackendUnavailable, LaunchRefused
from orchestrator.domain.job.attempt import AttemptKey
from orchestrator.domain.job.launch_plan import LaunchPlan
from orchestrator.domain.observation.observation import Presence, Sighting
from orchestrator.domain.specs.spec import Placement, Resources
from orchestrator.jobfolder.folder import JobFolder
from orchestrator.jobfolder.removal import drop
from trainer.contract.launch import LaunchPolicy

MODULES = ("torch", "numpy", "xxhash")  # required by the bundled trainer
_PORT = 20_000  # free, because each pod has its own address
_PODS, _GRACE_S, _KEPT_S = 2, 5, 300
_LOOK_S, _END_LOOK_S = 1.0, 0.1
_CLOCKS_S = 2.0  # heartbeats carry their sender's time
_AS_THE_SERVICE = ", and run this check as the service's user"
_OUR_MOUNTS = frozenset({"launch", "packed"})  # only jobs have these


@dataclass(frozen=True, slots=True)
class CheckResult:
    """One finding. `good` is None for a warning."""

    check: str
    good: bool | None
    sentence: str


@dataclass(frozen=True, slots=True, kw_only=True)
class ProbeOptions:
    """What to check. Both pods must start within `patience_s`, and meet each other within `meet_s`."""

    url: str | None = None  # the service's URL for agents
    modules: tuple[str, ...] = MODULES
    port: int = _PORT
    patience_s: float = 600.0
    meet_s: float = 180.0


def probe(client: KubernetesClient, site: KubernetesSite, options: ProbeOptions) -> Iterator[CheckResult]:
    """Start the pods, wait for their findings, and delete them."""
    nonce = secrets.token_hex(4)
    folder = f".doctor-{nonce}"
    here = JobFolder(site.service_root, folder) if site.shared else None
    try:
        if here is not None:
            with here.make() as opened:
                opened.write(Path("asked"), nonce.encode())
    except OSError as error:
        yield CheckResult("run directory", False, f"cannot write {site.service_root} on this machine: {error}")
        return
    try:
        yield from _look_around(client, site, options, AttemptKey(f"doctor-{nonce}", 1), folder)
    finally:
        if here is not None:
            drop(here)


def render_probe(site: KubernetesSite, key: AttemptKey, options: ProbeOptions, folder: str) -> Manifests:
    """Render a job's objects with the probe's command, without what only jobs need."""
    manifests = render_manifests(_plan(key, site), site, workdir="/")
    job = manifests.job
    pod = job["spec"]["template"]["spec"]
    command = [site.python, "-c", Path(__file__).with_name("look_around.py").read_text()]
    command += [str(site.root / folder), options.url or "", str(options.port), str(options.meet_s), *options.modules]
    containers = [_with_command(each, command) if each["name"] == CONTAINER else each for each in pod["containers"]]
    volumes = [each for each in pod["volumes"] if each["name"] not in _OUR_MOUNTS]
    pod = {**pod, "containers": containers, "volumes": volumes, "terminationGracePeriodSeconds": _GRACE_S}
    spec = {
        **job["spec"],
        "suspend": QUEUE_LABEL in job["metadata"]["labels"],  # in a queue, until Kueue admits it
        "activeDeadlineSeconds": round(options.patience_s + 2 * options.meet_s),
        "ttlSecondsAfterFinished": _KEPT_S,
        "template": {**job["spec"]["template"], "spec": pod},
    }
    meta = {**job["metadata"], "annotations": {**job["metadata"]["annotations"], WHOLE_ANNOTATION: "true"}}
    return Manifests(job={**job, "metadata": meta, "spec": spec}, service=manifests.service, secret=manifests.secret)


def judge_findings(
    found: Sequence[Mapping[str, Any]],
    site: KubernetesSite,
    options: ProbeOptions,
    *,
    asked: float,
    answered: float,
    nonce: str,
) -> Iterator[CheckResult]:
    """Judge the pods' findings, given by index. Times are seconds since the epoch on the service's clock."""
    nodes = sorted({str(each["node"]) for each in found})
    note = "" if len(nodes) > 1 else "; the network between two nodes was not tested"
    yield CheckResult("pods", True, f"{len(found)} pods ran on {' and '.join(nodes)}{note}")
    enough = all(each["enough"] for each in found)
    yield CheckResult(
        "python",
        enough,
        f"{site.python} is Python {found[0]['python']}" + ("" if enough else "; 3.10 or newer is required"),
    )
    absent = {name: words for each in found for name, words in each["missing"].items()}
    detail = "; ".join(f"{name}: {words}" for name, words in absent.items())
    yield CheckResult(
        "torch", not absent, f"{site.python} imports {', '.join(options.modules)}" if not absent else detail
    )
    yield _storage(found, site, nonce)
    unmet = next((str(each["unmet"]) for each in found[::-1] if each["unmet"]), None)
    met = "the second pod reaches the first by name" if unmet is None else f"the pods cannot reach each other: {unmet}"
    yield CheckResult("network", unmet is None, met)
    yield _reports(found, site, options)
    ahead_s = max(0.0, *(max(asked - each["at"], each["at"] - answered) for each in found))
    agree = ahead_s < _CLOCKS_S
    words = "the nodes' clocks agree with this machine's" if agree else f"the clocks differ by at least {ahead_s:.1f} s"
    yield CheckResult("clock", True if agree else None, words)


def _storage(found: Sequence[Mapping[str, Any]], site: KubernetesSite, nonce: str) -> CheckResult:
    check = "run directory"
    for each in found:
        if each["unwritten"]:
            words = f"user {each['user']} cannot write {site.root} on {each['node']}: {each['unwritten']}"
            return CheckResult(check, False, f"{words}; see run_as" + _AS_THE_SERVICE * site.shared)
    if site.claim is None and site.host_path is None:
        return CheckResult(check, None, "the pods share no folder, so snapshots need an object store (snapshot.dir)")
    if any(each["unseen"] for each in found):
        return CheckResult(check, False, f"the pods do not see each other's files in {site.root}")
    if site.shared and any(each["asked"] != nonce for each in found):
        return CheckResult(check, False, f"{site.root} in the pods is not {site.service_root} on this machine")
    return CheckResult(check, True, f"the pods share {site.root}" + (" with the service" if site.shared else ""))


def _reports(found: Sequence[Mapping[str, Any]], site: KubernetesSite, options: ProbeOptions) -> CheckResult:
    if options.url is None:
        return CheckResult("reports", True, "ADVERTISE_URL is not set, so agents report through the run directory")
    unreached = next((str(each["unreached"]) for each in found if each["unreached"]), None)
    if unreached is None:
        return CheckResult("reports", True, f"the pods reach {options.url}")
    instead = "agents report through the run directory" if site.shared else "agents cannot report"
    return CheckResult("reports", None, f"the pods cannot reach {options.url} ({unreached}); until they can, {instead}")


def _plan(key: AttemptKey, site: KubernetesSite) -> LaunchPlan:
    """Build the plan of a job without demands."""
    return LaunchPlan(
        key=key,
        app=AppDef(name=str(key), roles=[Role(name="probe", image="/", entrypoint="true", num_replicas=_PODS)]),
        rendezvous_id=str(key),
        rendezvous_host="",
        port=0,
        workers_per_node=0,
        excluded_nodes=(),
        job_dir=str(site.root),
        workdir="/",
        policy=LaunchPolicy(max_restarts=0, stop_timeout_s=1, log_limit_bytes=1),
        resources=Resources(),
        placement=Placement(),
        image=None,
    )


def _with_command(container: Manifest, command: list[str]) -> Manifest:
    mounts = [each for each in container["volumeMounts"] if each["name"] not in _OUR_MOUNTS]
    return {**container, "command": command, "volumeMounts": mounts}


def _look_around(
    client: KubernetesClient, site: KubernetesSite, options: ProbeOptions, key: AttemptKey, folder: str
) -> Iterator[CheckResult]:
    manifests = render_probe(site, key, options, folder)
    name = manifests.job["metadata"]["name"]
    asked = time.time()
    try:
        job, _ = client.create("jobs", manifests.job)
        try:
            client.create("services", owned(manifests.service, job))
            seen, pods = _wait(client, site, key, name, options)
        finally:
            with suppress(BackendUnavailable):  # the Job then expires
                client.delete_job(name)
                _await_end(client, name)
    except (LaunchRefused, BackendUnavailable, FileExistsError) as error:
        yield CheckResult("pods", False, f"could not start two test pods: {error}")
        return
    found = _findings(pods)
    if len(found) == _PODS:
        nonce = folder.rpartition("-")[2]
        yield from judge_findings(found, site, options, asked=asked, answered=time.time(), nonce=nonce)
        return
    evidence = [seen.evidence, *(each.evidence for each in seen.replicas)]
    why = "; ".join(evidence) if seen.cause is None else seen.cause.message
    printed = [pod.container.message.strip() for pod in pods if pod.container is not None and pod.container.message]
    last = f"; it printed: {printed[0].splitlines()[-1]}" if printed and not found else ""
    yield CheckResult("pods", False, f"the two test pods did not finish: {why}{last}")


def _await_end(client: KubernetesClient, name: str) -> None:
    """Wait until no pod is left that could still write into the folder, for at most twice the pods' grace period."""
    deadline = time.monotonic() + 2 * _GRACE_S
    pods = Selection(resource="pods", labels=f"{ATTEMPT_LABEL}={name}")
    while client.list(pods)[0] and time.monotonic() < deadline:
        time.sleep(_END_LOOK_S)


def _wait(
    client: KubernetesClient,
    site: KubernetesSite,
    key: AttemptKey,
    name: str,
    options: ProbeOptions,
    pause: Callable[[float], None] = time.sleep,
) -> tuple[Sighting, list[PodObject]]:
    """Wait until both pods have ended, one can never start, or the time is over."""
    parse = partial(parse_pod, container=CONTAINER)
    deadline = time.monotonic() + options.patience_s + options.meet_s
    while True:
        job = client.job(name)
        pods = [parse(each) for each in client.list(Selection(resource="pods", labels=f"{ATTEMPT_LABEL}={name}"))[0]]
        parsed = None if job is None else parse_job(job)
        workloads = _workloads(client) if parsed is not None and parsed.queued_by_kueue else None
        view = View(
            job=parsed,
            pods=tuple(pods),
            warnings=_warnings(client),
            workload=None if workloads is None or parsed is None else workloads.get(parsed.uid),
            has_workloads=workloads is not None,
        )
        context = SightContext(now=time.time(), settle_s=0.0, image_patience_s=site.image_patience_s)
        seen = sight(key, view, Traces(replicas=_PODS, submitted=True, began=bool(pods)), context)
        over = len(_findings(pods)) == _PODS or seen.presence is Presence.GONE
        if over or time.monotonic() > deadline:
            return seen, pods
        pause(_LOOK_S)


def _warnings(client: KubernetesClient) -> tuple[WarningObject, ...]:
    """Return the warnings, or nothing without the right to list them."""
    with suppress(BackendUnavailable, Expired):
        listed, _ = client.list(Selection(resource="events", fields="type=Warning"))
        return tuple(map(parse_warning, listed))
    return ()


def _workloads(client: KubernetesClient) -> dict[str, Workload] | None:
    """Return Kueue's Workloads by the uid of their Job. None without the right to list them."""
    with suppress(BackendUnavailable, Expired):
        listed, _ = client.list(Selection(resource="workloads"))
        return by_job(map(parse_workload, listed))
    return None


def _findings(pods: Sequence[PodObject]) -> list[Mapping[str, Any]]:
    found: dict[int, Mapping[str, Any]] = {}
    for pod in pods:
        if pod.container is not None and pod.container.terminated is not None:
            with suppress(ValueError, TypeError, KeyError):
                document = json.loads(pod.container.message)
                found[int(document["index"])] = document
    return [found[index] for index in sorted(found)]
