"""A fake Job controller and a fake kubelet. Containers are processes of this machine."""

from __future__ import annotations

import base64
import os
import signal
import subprocess
import threading
import time
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from deploy.dev.killing import kill_at_once
from deploy.dev.network import Network
from tests.kubernetes.fake_api import Json, Store, now_text

_NOT_READY_S = 46.0  # observed: a Kubernetes with default times marks a node not ready this long after a power cut
_INDEX = "batch.kubernetes.io/job-completion-index"
_TRACKED = "batch.kubernetes.io/job-tracking"


@dataclass
class Running:
    process: subprocess.Popen[bytes]
    words: Path
    log: Path
    kill_at: float | None = None
    read: int = 0  # bytes of its log


@dataclass
class FakeCluster:
    """Runs in a thread between `start` and `close`. Pods are not replaced, whatever their Job asks for."""

    store: Store
    folder: Path
    running: dict[str, Running] = field(default_factory=dict)
    deleted: dict[str, float] = field(default_factory=dict)  # pods: their grace period, in seconds
    asked_at: dict[str, float] = field(default_factory=dict)  # pods: time of the first deletion request
    begun: set[tuple[str, int]] = field(default_factory=set)  # (a Job's uid, index) that have had their pod
    nodes: tuple[str, ...] = ("node-1",)  # ready nodes get pods in turn
    dark: dict[str, float] = field(default_factory=dict)  # nodes without power, with the time when the cluster notices
    closing: threading.Event = field(default_factory=threading.Event)
    held: Json = field(default_factory=dict)  # if set, pods do not start and have this status
    network: Network | None = None  # its machines are the nodes, in order; None: all pods are on loopback
    starved: set[str] = field(default_factory=set)  # pods that were killed out of memory
    due: dict[str, float] = field(default_factory=dict)  # Jobs by uid: end of their time limit

    def __post_init__(self) -> None:
        self.store.on_delete = self._delete
        self.store.on_evict = self.evict
        for name in self.nodes:
            self._put_node(name, "ADDED", status="True", reason="KubeletReady")
        self._thread = threading.Thread(target=self._run, name="cluster", daemon=True)

    def start(self) -> None:
        (self.folder / "runs").mkdir(parents=True, exist_ok=True)
        self._thread.start()

    def close(self) -> None:
        self.closing.set()
        self._thread.join(300)
        for each in self.running.values():
            _kill(each.process)

    def _run(self) -> None:
        while not self.closing.wait(0.03):
            for job in self.store.all("jobs"):
                if not job["spec"].get("suspend") and not _over(job):
                    self._control(job)
            for name, at in list(self.dark.items()):
                if time.monotonic() >= at and self._is_ready(name):
                    self._put_node(name, "MODIFIED", status="Unknown", reason="NodeStatusUnknown")
            for pod in self.store.all("pods"):
                if _node_of(pod) not in self.dark:
                    self._keep(pod)

    def _control(self, job: Json) -> None:
        if self._is_due(job):
            return
        pods = {each["metadata"]["labels"][_INDEX]: each for each in self._pods_of(job)}
        phases = []
        for index in range(job["spec"]["completions"]):
            life = (job["metadata"]["uid"], index)
            if life not in self.begun:
                self.begun.add(life)
                self.store.put("pods", self._new_pod(job, index), "ADDED")
                phases.append("Pending")
                continue
            found = pods.get(str(index))
            phases.append("Failed" if found is None else found["status"].get("phase"))
        if all(each in ("Succeeded", "Failed") for each in phases):
            good = all(each == "Succeeded" for each in phases)
            kind, reason = ("Complete", "CompletionsReached") if good else ("Failed", "FailedIndexes")
            self._conclude(job, kind, reason)

    def _is_due(self, job: Json) -> bool:
        """Return whether the Job's time limit is over. If so, end its pods as recorded (13)."""
        limit_s, uid = job["spec"].get("activeDeadlineSeconds"), job["metadata"]["uid"]
        if limit_s is None or time.monotonic() < self.due.setdefault(uid, time.monotonic() + limit_s):
            return False
        conditions = (job.get("status") or {}).get("conditions", ())
        pods = self._pods_of(job)
        if not conditions:
            for pod in pods:
                self._end_pod(pod, pod["spec"]["terminationGracePeriodSeconds"])
        over = all(pod["status"].get("phase") in ("Succeeded", "Failed") for pod in pods)
        if over or not conditions:
            words = "Job was active longer than specified deadline"
            self._conclude(job, "Failed" if over else "FailureTarget", "DeadlineExceeded", words)
        return True

    def _conclude(self, job: Json, kind: str, reason: str, words: str = "") -> None:
        conditions = (job.get("status") or {}).get("conditions", ())
        condition = {"type": kind, "status": "True", "reason": reason, "message": words}
        self.store.put("jobs", {**job, "status": {"conditions": [*conditions, condition]}}, "MODIFIED")

    def _pods_of(self, job: Json) -> list[Json]:
        uid = job["metadata"]["uid"]
        return [each for each in self.store.all("pods") if each["metadata"]["ownerReferences"][0]["uid"] == uid]

    def _new_pod(self, job: Json, index: int) -> Json:
        name = f"{job['metadata']['name']}-{index}-{self.store.version}"
        labels = {
            **job["spec"]["template"]["metadata"]["labels"],
            _INDEX: str(index),
            "batch.kubernetes.io/job-name": job["metadata"]["name"],
            "batch.kubernetes.io/controller-uid": job["metadata"]["uid"],
        }
        owner = {"kind": "Job", "name": job["metadata"]["name"], "uid": job["metadata"]["uid"]}
        meta = {"name": name, "uid": f"uid-{name}", "labels": labels, "ownerReferences": [owner]}
        meta |= {"creationTimestamp": now_text(), "finalizers": [_TRACKED]}
        ready = [node for node in self.nodes if self._is_open(node)]
        spec = {**job["spec"]["template"]["spec"], "nodeName": ready[index % len(ready)]}
        return {"metadata": meta, "spec": spec, "status": {"phase": "Pending"}}

    def _keep(self, pod: Json) -> None:
        """Do the kubelet's work for one pod."""
        name, phase = pod["metadata"]["name"], pod["status"].get("phase")
        if self.held and phase == "Pending" and name not in self.deleted:
            if pod["status"] != self.held:
                self.store.put("pods", {**pod, "status": self.held}, "MODIFIED")
            return
        if phase == "Pending" and name not in self.running and name not in self.deleted:
            wanted = [each["secret"]["secretName"] for each in pod["spec"]["volumes"] if "secret" in each]
            secrets = [found for each in wanted if (found := self.store.get("secrets", each)) is not None]
            if len(secrets) == len(wanted):
                self.running[name] = self._launch(pod, secrets)
                status = {"phase": "Running", "containerStatuses": [{"name": "agent", "state": {"running": {}}}]}
                status["conditions"] = [{"type": "Ready", "status": "True"}]
                self.store.put("pods", {**pod, "status": status}, "MODIFIED")
            return
        running = self.running.get(name)
        if running is not None:
            self._tell_log(name, running)
        if running is not None and running.kill_at is not None and time.monotonic() >= running.kill_at:
            _kill(running.process)
        if running is not None and running.process.poll() is not None and phase == "Running":
            self._tell_log(name, running)
            with self.store.changed:
                self.store.printing.discard(name)
            pod = self.store.put("pods", _ended(pod, running, starved=name in self.starved), "MODIFIED")
        gone = running is None or running.process.poll() is not None
        if name in self.deleted and gone:
            self.running.pop(name, None)
            self.deleted.pop(name)
            self.store.put("pods", pod, "DELETED")

    def _tell_log(self, name: str, running: Running) -> None:
        """Add the container's new lines to its log, each with a time, as a container runtime does."""
        with running.log.open("rb") as file:
            file.seek(running.read)
            whole, end, _ = file.read().rpartition(b"\n")
        if end:
            running.read += len(whole) + 1
            with self.store.changed:
                self.store.logs.setdefault(name, []).extend((stamp(), line) for line in whole.split(b"\n"))
                self.store.changed.notify_all()

    def _launch(self, pod: Json, secrets: list[Json]) -> Running:
        """Start the container. Its mounts are in a folder of the pod, and paths in its command are replaced."""
        name, (container,) = pod["metadata"]["name"], pod["spec"]["containers"]
        words, log, mounts = (self.folder / f"{name}.{end}" for end in ("words", "log", "mounts"))

        def here(text: str) -> str:
            for place in ("/etc/elastic-orchestrator", "/opt/elastic-orchestrator"):
                text = text.replace(place, f"{mounts}{place}")
            return text.replace("/run/orchestrator", f"{self.folder}/runs")

        self._mount(pod, secrets, mounts)
        given = {each["name"]: here(each["value"]) for each in container["env"] if "value" in each}
        environment = {
            "PATH": os.environ["PATH"],
            # Unlike in a pod, this machine's host name does not resolve to the address of the network namespace.
            **({} if self.network is None else {"GLOO_SOCKET_IFNAME": "eth0"}),
            **given,
            "JOB_COMPLETION_INDEX": pod["metadata"]["labels"][_INDEX],
            "ORCHESTRATOR_POD_IP": self._address(pod["spec"]["nodeName"]),
            "ORCHESTRATOR_NODE": pod["spec"]["nodeName"],
            "ORCHESTRATOR_HEAD": self._address(self._head_of(pod)),  # there is no cluster DNS
            "ORCHESTRATOR_JOB_UID": pod["metadata"]["ownerReferences"][0]["uid"],
            "ORCHESTRATOR_LAST_WORDS": str(words),
        }
        with log.open("wb") as output:
            process = subprocess.Popen(
                self._inside(pod["spec"]["nodeName"], [here(word) for word in container["command"]]),
                env=environment,
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )
        with self.store.changed:
            self.store.printing.add(name)
        return Running(process, words, log)

    def _address(self, node: str) -> str:
        return "127.0.0.1" if self.network is None else self.network.address(self.nodes.index(node))

    def _inside(self, node: str, command: list[str]) -> list[str]:
        return command if self.network is None else self.network.inside(self.nodes.index(node), command)

    def _head_of(self, pod: Json) -> str:
        """Return the node of the first pod of the pod's Job."""
        uid = pod["metadata"]["ownerReferences"][0]["uid"]
        mates = [each for each in self.store.all("pods") if each["metadata"]["ownerReferences"][0]["uid"] == uid]
        (head,) = (each for each in mates if each["metadata"]["labels"][_INDEX] == "0")
        return str(head["spec"]["nodeName"])

    def _mount(self, pod: Json, secrets: list[Json], mounts: Path) -> None:
        maps = [each["configMap"]["name"] for each in pod["spec"]["volumes"] if "configMap" in each]
        packed = [self.store.get("configmaps", name) for name in maps]
        for folder, data in (
            *((mounts / "etc/elastic-orchestrator", each["data"]) for each in secrets),
            *((mounts / "opt/elastic-orchestrator/packed", each["binaryData"]) for each in packed if each),
        ):
            folder.mkdir(parents=True)
            for file, content in data.items():
                inside = base64.b64decode(content).replace(b"/run/orchestrator", f"{self.folder}/runs".encode())
                (folder / file).write_bytes(base64.b64decode(content) if file.endswith(".zip") else inside)

    def _delete(self, resource: str, document: Json, options: Json) -> None:
        if resource == "jobs":
            assert options["propagationPolicy"] == "Background", "other policies orphan its pods"
            self.store.put("jobs", document, "DELETED")
            for pod in self._pods_of(document):
                self._end_pod(pod, pod["spec"]["terminationGracePeriodSeconds"])
            return
        self._end_pod(document, options.get("gracePeriodSeconds", 30))

    def disrupt(self, name: str, reason: str, message: str, *, by: str = "") -> None:
        """End a pod with a disruption. Its condition is set first, as recorded (08, 16)."""
        pod = self.store.get("pods", name)
        assert pod is not None, name
        condition = {"type": "DisruptionTarget", "status": "True", "reason": reason, "message": message}
        conditions = [*pod["status"].get("conditions", ()), condition]
        owned: Json = {"f:status": {"f:conditions": {'k:{"type":"DisruptionTarget"}': {}}}}
        meta = {**pod["metadata"], "managedFields": [{"manager": by, "fieldsV1": owned}] if by else []}
        pod = {**pod, "metadata": meta, "status": {**pod["status"], "conditions": conditions}}
        self._end_pod(self.store.put("pods", pod, "MODIFIED"), pod["spec"]["terminationGracePeriodSeconds"])

    def preempt(self, name: str, *, by: str) -> None:
        """Preempt a pod for the pod with uid `by`, as the scheduler does."""
        words = "default-scheduler: preempting to accommodate a higher priority pod"
        self.disrupt(name, "PreemptionByScheduler", words, by="kube-scheduler")
        about, pod = {"kind": "Pod", "name": name}, self.store.get("pods", name)
        node = None if pod is None else _node_of(pod)
        event = {"type": "Normal", "reason": "Preempted", "message": f"Preempted by pod {by} on node {node}"}
        meta = {"name": f"{name}.preempted", "uid": f"uid-{name}.preempted"}
        self.store.put("events", {"metadata": meta, "involvedObject": about, **event, "eventTime": now_text()}, "ADDED")

    def cut_power(self, node: str) -> None:
        """Stop all processes of a node without closing connections. The cluster notices later.

        Without a `network` the kernel still acknowledges packets to the node.
        """
        self.dark[node] = time.monotonic() + _NOT_READY_S
        if self.network is not None:
            self.network.cut(self.nodes.index(node))
        for pod in self.store.all("pods"):
            running = self.running.get(pod["metadata"]["name"])
            if _node_of(pod) == node and running is not None:
                for pid in (running.process.pid, *_descendants(running.process.pid)):
                    with suppress(ProcessLookupError):
                        os.kill(pid, signal.SIGSTOP)

    def cut_off(self, node: str, *, one_way: bool = False) -> None:
        """Drop all packets of the node's pods and kubelet. `one_way`: they still receive."""
        assert self.network is not None
        number = self.nodes.index(node)
        self.dark[node] = time.monotonic() + _NOT_READY_S
        self.network.mute(number) if one_way else self.network.cut(number)

    def reconnect(self, node: str) -> None:
        """Undo `cut_off`. The kubelet then learns which of its pods were deleted."""
        assert self.network is not None
        self.network.repair(self.nodes.index(node))
        del self.dark[node]
        self._put_node(node, "MODIFIED", status="True", reason="KubeletReady")
        for pod in self.store.all("pods"):
            name = pod["metadata"]["name"]
            if _node_of(pod) == node and name in self.deleted:
                self._tell_to_go(name, self.deleted[name])

    def run_out_of_memory(self, name: str) -> None:
        """Kill the whole container as out of memory, as recorded (05)."""
        self.starved.add(name)
        _kill(self.running[name].process)

    def drain(self, node: str) -> None:
        """Cordon the node and evict its pods."""
        self._put_node(node, "MODIFIED", cordoned=True, status="True", reason="KubeletReady")
        for pod in self.store.all("pods"):
            if _node_of(pod) == node and pod["status"].get("phase") == "Running":
                self.evict(pod["metadata"]["name"])

    def _is_open(self, name: str) -> bool:
        node = self.store.get("nodes", name)
        return node is not None and self._is_ready(name) and not node["spec"]["unschedulable"]

    def _is_ready(self, name: str) -> bool:
        node = self.store.get("nodes", name)
        return node is not None and node["status"]["conditions"][0]["status"] == "True"

    def _put_node(self, name: str, kind: str, *, cordoned: bool = False, **condition: str) -> None:
        meta, spec = {"name": name, "uid": f"uid-{name}"}, {"unschedulable": cordoned}
        status = {"conditions": [{"type": "Ready", **condition}]}
        self.store.put("nodes", {"metadata": meta, "spec": spec, "status": status}, kind)

    def evict(self, name: str) -> None:
        """Evict a pod, as a drain does."""
        self.disrupt(name, "EvictionByEvictionAPI", "Eviction API: evicting")

    def _end_pod(self, pod: Json, grace_s: float) -> None:
        """Delete a pod. A second deletion can shorten the grace period but not its begin.

        Source: apiserver, pkg/registry/rest/delete.go, BeforeDelete.
        """
        name = pod["metadata"]["name"]
        if grace_s >= self.deleted.get(name, float("inf")):
            return
        asked_at = self.asked_at.setdefault(name, time.time())
        meta = {**pod["metadata"], "deletionTimestamp": now_text(asked_at + grace_s)}
        self.store.put("pods", {**pod, "metadata": meta}, "MODIFIED")
        self.deleted[name] = grace_s
        if _node_of(pod) not in self.dark:
            self._tell_to_go(name, grace_s)

    def _tell_to_go(self, name: str, grace_s: float) -> None:
        running = self.running.get(name)
        if running is not None:
            running.kill_at = min(running.kill_at or float("inf"), time.monotonic() + grace_s)
            if running.process.poll() is None:
                running.process.send_signal(signal.SIGTERM)


def _over(job: Json) -> bool:
    return any(each["type"] in ("Complete", "Failed") for each in (job.get("status") or {}).get("conditions", ()))


def _ended(pod: Json, running: Running, *, starved: bool) -> Json:
    code = running.process.returncode
    code = 128 - code if code < 0 else code
    message = running.words.read_text() if running.words.exists() else ""
    reason = "OOMKilled" if starved else "Completed" if code == 0 else "Error"
    state: Json = {"exitCode": code, "reason": reason, "finishedAt": now_text(), "message": message}
    status: dict[str, Any] = {
        **pod["status"],
        "phase": "Succeeded" if code == 0 else "Failed",
        "containerStatuses": [{"name": "agent", "state": {"terminated": state}}],
    }
    return {**pod, "status": status}


def _node_of(pod: Json) -> str | None:
    node: str | None = pod.get("spec", {}).get("nodeName")
    return node


def stamp() -> str:
    """Return the time as container runtimes write it: RFC 3339 with nanoseconds."""
    seconds, nanoseconds = divmod(time.time_ns(), 1_000_000_000)
    return time.strftime("%Y-%m-%dT%H:%M:%S", time.gmtime(seconds)) + f".{nanoseconds:09d}Z"


def _kill(process: subprocess.Popen[bytes]) -> None:
    """Kill the process and its descendants, as the end of a container does. Stopped first, they start no others."""
    if process.poll() is not None:
        return  # its pid may belong to another process by now
    stopped: set[int] = set()
    while fresh := {process.pid, *_descendants(process.pid)} - stopped:
        for pid in fresh:
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGSTOP)
        stopped |= fresh
    kill_at_once(stopped)
    process.wait(300)


def _descendants(pid: int) -> list[int]:
    children: dict[int, list[int]] = {}
    for folder in Path("/proc").iterdir():
        if folder.name.isdecimal():
            try:
                fields = (folder / "stat").read_text(errors="replace").rpartition(")")[2].split()
            except OSError:
                continue
            children.setdefault(int(fields[1]), []).append(int(folder.name))
    found, left = [], [pid]
    while left:
        left = [child for each in left for child in children.get(each, ())]
        found += left
    return found
