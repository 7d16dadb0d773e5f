"""A service outside a real cluster, its settings, and the jobs of the tests.

All times are the defaults, because shorter ones hide wrong verdicts.
"""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import yaml

from deploy.dev.service import ThrowawayService
from orchestrator.backends.kubernetes.kubeconfig import find_context, kubeconfigs
from orchestrator.backends.kubernetes.site import CONTAINER
from orchestrator.client import Client
from orchestrator.wire.job_views import FailureView, JobView
from tests.jobs import until
from tests.kubernetes.live.cluster import CLAIM, Cluster
from tests.kubernetes.live.options import Options
from tests.kubernetes.live.relay import ReportsDoor

_PATIENCE_S = 420.0  # nodes may be slow
ENDLESS = 1_000_000  # steps of a job that the test cancels before its end


@dataclass
class Lab:
    cluster: Cluster
    service: ThrowawayService
    client: Client
    door: ReportsDoor
    python: str  # in the pods
    memory_gb: float  # of a pod

    def program(self, code: str, **fields: Any) -> str:
        """Submit a job of one pod whose one worker runs a line of Python."""
        run = {"command": [self.python, "-c", code], "workdir": "/", **fields.pop("run", {})}
        given = {"topology": {"nodes": "1"}, "resources": {"memory_gb": self.memory_gb}, **fields}
        return self.client.submit({"name": "line", "cluster": "live", "run": run, **given}).id

    def submit(self, **fields: Any) -> str:
        return self.client.submit(training(resources={"memory_gb": self.memory_gb}, **fields)).id

    def until(self, job_id: str, holds: Callable[[JobView], bool], *, timeout_s: float = _PATIENCE_S) -> JobView:
        try:
            return until(self.client, job_id, holds, timeout_s=timeout_s)
        except AssertionError as error:
            raise AssertionError(f"{error}\n{self.seen(job_id)}\n{self.service.printed()[-3000:]}") from None

    def at_step(self, job_id: str, step: int) -> JobView:
        job = self.until(job_id, lambda job: (job.step or 0) >= step or job.ended)
        assert not job.ended, f"{job.reason}\n{self.sentences(job_id)}"
        return job

    def with_snapshot(self, job_id: str) -> JobView:
        """Wait until the job has a snapshot."""
        job = self.until(job_id, lambda job: job.ended or ((job.step or 0) >= 25 and job.newest_snapshot is not None))
        assert not job.ended, f"{job.reason}\n{self.sentences(job_id)}"
        return job

    def goes_on(self, job_id: str, *, attempts: int, timeout_s: float = _PATIENCE_S) -> None:
        """Wait until attempt number `attempts` has made steps after a restore. Then cancel the job."""

        def trains(job: JobView) -> bool:
            if job.attempts < attempts:
                return job.ended
            newest = list(self.client.attempts(job_id))[-1]
            return job.ended or (newest.restored is not None and (newest.step or 0) > step_of(newest.restored))

        job = self.until(job_id, trains, timeout_s=timeout_s)
        assert not job.ended, f"{job.reason}\n{self.sentences(job_id)}"
        assert job.attempts == attempts, self.sentences(job_id)
        self.client.cancel(job_id)
        assert self.until(job_id, lambda job: job.ended).state == "CANCELLED"

    def succeeded(self, job_id: str, *, timeout_s: float = 600) -> JobView:
        job = self.until(job_id, lambda job: job.ended, timeout_s=timeout_s)
        assert job.state == "SUCCEEDED", f"{job.reason}\n{self.sentences(job_id)}\n{self.seen(job_id)}"
        return job

    def sentences(self, job_id: str) -> str:
        return "\n".join(event.sentence for event in self.client.events(job_id))

    def failures(self, job_id: str) -> list[FailureView]:
        """Return the failures of its attempts, oldest first."""
        return [each.failure for each in self.client.attempts(job_id) if each.failure is not None]

    def kinds_of_failure(self, job_id: str) -> list[str]:
        return [each.kind for each in self.failures(job_id)]

    def seen(self, job_id: str) -> str:
        """Return the status of the job's pods, for the message of a failed test."""
        pods = [each for each in self.cluster.items("pods") if each["metadata"]["name"].startswith(job_id)]
        lines = [f"{each['metadata']['name']}: {json.dumps(each['status'])[:1500]}" for each in pods]
        return "\n".join(lines)

    def conditions(self, job_id: str) -> list[Any]:
        """Return the conditions of its only Job."""
        (found,) = self.cluster.jobs(job_id)
        conditions: list[Any] = (found.get("status") or {}).get("conditions") or []
        return conditions

    def restart(self) -> None:
        """Start the service again after a kill, at the same address."""
        start(self.service, self.door)


def start(service: ThrowawayService, door: ReportsDoor) -> None:
    """Start the service and forward reports to it."""
    service.start()
    door.service_port = urlsplit(service.url).port or 0


def tell(findings: list[dict[str, str]]) -> str:
    """Render doctor's findings, one per line."""
    return "\n".join(f"{each['verdict']:8} {each['check']}: {each['sentence']}" for each in findings)


def training(**fields: Any) -> dict[str, Any]:
    """Build a spec: the bundled trainer on two pods with two ranks each. `trainer` changes its configuration."""
    config = {"preset": "nano", "steps": 60, "global_batch": 16, "micro_batch": 2, "seq_len": 32, "strategy": "ddp"}
    spec = {
        "name": "live",
        "cluster": "live",
        "run": {"trainer": {**config, **fields.pop("trainer", {})}, "workdir": "/"},
        "topology": {"nodes": "2", "workers_per_node": 2},
        "snapshot": {"interval": "10"},
    }
    return {**spec, **fields}


def configuration(options: Options, namespace: str) -> str:
    """Render orchestrator.toml."""
    given: dict[str, Any] = {
        **({"context": options["context"]} if options["context"] else {}),
        "namespace": namespace,
        "image": options["image"],
        "python": options["python"],
        "run_as": _user(options),
    }
    if options["storage-class"] or options["claim"]:
        given["claim"] = options["claim"] or CLAIM
    else:
        given["host_path"] = f"{options['host-path']}/{namespace}"
    if options["service-root"]:
        shared = options["service-root"]
        given["service_root"] = shared if "claim" in given else f"{shared}/{namespace}"
    given["overlay"] = overlay_of(Path(options["overlay"]).read_text() if options["overlay"] else "")
    lines = [f"{name} = {render_toml(value)}" for name, value in given.items()]
    return "\n".join(["[clusters.live]", 'backend = "kubernetes"', *lines]) + "\n"


def overlay_of(text: str) -> dict[str, Any]:
    """Parse an overlay and set imagePullPolicy to IfNotPresent, so that a local image needs no registry."""
    given: dict[str, Any] = yaml.safe_load(text) or {}
    pod = given.setdefault("spec", {}).setdefault("template", {}).setdefault("spec", {})
    containers: list[dict[str, Any]] = pod.setdefault("containers", [])
    if not any(each.get("name") == CONTAINER for each in containers):
        containers.append({"name": CONTAINER})
    for each in containers:
        each.setdefault("imagePullPolicy", "IfNotPresent")
    return given


def _user(options: Options) -> int:
    """Return the user of the pods. With shared files it is this user, whose files they may write."""
    if options["run-as"]:
        return int(options["run-as"])
    if options["service-root"]:
        return os.getuid()
    return 0 if options["host-path"] else 1000


def kubeconfig_through(port: int, options: Options, folder: Path) -> str:
    """Return a KUBECONFIG that reaches the cluster through a relay. The first of two clusters of one name counts."""
    context = find_context(kubeconfigs(), options["context"] or None)
    cluster = dict(context.cluster)
    if cluster.get("certificate-authority"):
        cluster["certificate-authority"] = str((context.cluster_folder / cluster["certificate-authority"]).absolute())
    proxy = urlsplit(cluster.get("proxy-url") or "http://")
    named = f"{proxy.netloc.rpartition('@')[0]}@" if "@" in proxy.netloc else ""
    cluster["proxy-url"] = f"{proxy.scheme}://{named}127.0.0.1:{port}"
    if cluster.pop("tls-server-name", None):  # ignored behind a proxy
        cluster = {name: value for name, value in cluster.items() if not name.startswith("certificate-authority")}
        cluster["insecure-skip-tls-verify"] = True
    path = folder / "kubeconfig"
    path.touch(mode=0o600)
    path.write_text(yaml.safe_dump({"clusters": [{"name": context.cluster_name, "cluster": cluster}]}))
    return os.pathsep.join(map(str, (path, *(each.absolute() for each in kubeconfigs()))))


def step_of(snapshot: str) -> int:
    """Parse the step in a snapshot's name such as step-00000120-a3-g2."""
    return int(snapshot.split("-")[1])


def render_toml(value: Any) -> str:
    if value is None:  # TOML has no null
        value = {"$patch": "delete"}
    if isinstance(value, dict):
        return "{" + ", ".join(f"{json.dumps(name)} = {render_toml(each)}" for name, each in value.items()) + "}"
    if isinstance(value, list):
        return "[" + ", ".join(render_toml(each) for each in value) + "]"
    return json.dumps(value)
