"""Check the service's setup, and whether the configured clusters can run jobs.

On Slurm the doctor starts a one-minute job on a compute node, on Kubernetes a Job of two pods. On every cluster it then
starts two workers as in a job (`group`). It leaves behind only what jobs share.
"""

from __future__ import annotations

import json
import re
import secrets
import shlex
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path

from torchx.specs import AppDef, Resource, Role

from orchestrator.backends.kubernetes import checkup
from orchestrator.backends.kubernetes.backend import KubernetesBackend
from orchestrator.backends.kubernetes.probe import ProbeOptions
from orchestrator.backends.slurm.client import SlurmClient
from orchestrator.backends.slurm.site import SlurmSite
from orchestrator.backends.torchx.backend import TorchxBackend
from orchestrator.backends.torchx.client import TorchxClient
from orchestrator.bootstrap.cluster_backends import (
    build_client,
    build_kubernetes_client,
    build_kubernetes_site,
    build_slurm_site,
    build_torchx_client,
)
from orchestrator.bootstrap.machine import build_clusters
from orchestrator.cluster_settings import (
    ClusterSettings,
    KubernetesClusterSettings,
    LocalClusterSettings,
    SlurmClusterSettings,
    TorchxClusterSettings,
)
from orchestrator.doctor.finding import CheckResult, Finding, Verdict
from orchestrator.doctor.service_checks import examine_service
from orchestrator.doctor.trial_group import try_group
from orchestrator.domain.errors import BackendUnavailable, ConfigurationError, LaunchRefused
from orchestrator.jobfolder.folder import JobFolder
from orchestrator.jobfolder.removal import drop
from orchestrator.ports.cluster import Backend
from orchestrator.settings import Settings

_OLDEST_VERSION = (22, 5)
_PROBE_S = 180.0  # includes the wait for a free node
_LATE_S = 90.0  # beyond _PROBE_S, for the task's own minute and Slurm's delay
_MAX_CLOCK_DIFFERENCE_S = 2.0  # heartbeats carry their sender's time
_SHORT_MIN_JOB_AGE_S = 60

# Runs on a compute node: prints what it finds as one line of JSON.
_PROGRAM = """
import json, pathlib, socket, sys, time, urllib.request
folder, url = pathlib.Path(sys.argv[1]), sys.argv[2]
found = {"host": socket.gethostname(), "python": sys.version.split()[0], "at": time.time()}
found["enough"] = sys.version_info >= (3, 10)
try:
    found["seen"] = (folder / "asked").read_text()
    (folder / "answered").write_text(found["seen"])
except OSError as error:
    found["error"] = str(error)
try:
    import torch
    found["torch"] = torch.__version__
except Exception as error:
    found["torch_error"] = repr(error)
if url:
    try:
        urllib.request.urlopen(url + "/healthz", timeout=5).close()
        found["reached"] = True
    except OSError as error:
        found["reach_error"] = str(error)
print("FOUND " + json.dumps(found))
"""


_WEAKER = (
    "torchx reports neither nodes nor causes, cannot avoid nodes, and cannot find an app whose id was lost; "
    "docs/torchx.md says what follows from that"
)


def examine(settings: Settings, cluster: str | None = None) -> Iterator[Finding]:
    """Check the service and all clusters, or only the named cluster. Raises ConfigurationError for an unknown name."""
    configured = settings.clusters or {"local": LocalClusterSettings(backend="local")}
    chosen = {name: given for name, given in sorted(configured.items()) if cluster in (None, name)}
    if cluster is None:
        yield from examine_service(settings)
    elif not chosen:
        raise ConfigurationError(
            f"no cluster {cluster} is configured: see docs/slurm.md, docs/kubernetes.md and docs/torchx.md"
        )
    for name, given in chosen.items():
        failed = False
        for check, verdict, sentence in _examine_cluster(given, settings):
            failed |= verdict is Verdict.FAILED
            yield Finding(cluster=name, check=check, verdict=verdict, sentence=sentence)
        if not failed:  # otherwise the group would fail for the same reason
            for check, verdict, sentence in _try_group(name, given, settings):
                yield Finding(cluster=name, check=check, verdict=verdict, sentence=sentence)


def _examine_cluster(given: ClusterSettings, settings: Settings) -> Iterator[CheckResult]:
    match given:
        case LocalClusterSettings():
            yield from ()
        case SlurmClusterSettings():
            yield from _examine(given, settings)
        case KubernetesClusterSettings():
            yield from _examine_kubernetes(given, settings)
        case TorchxClusterSettings():
            yield from _examine_torchx(given, settings)


def _try_group(name: str, given: ClusterSettings, settings: Settings) -> Iterator[CheckResult]:
    """Start two workers. They request no device, so they do not wait for one."""
    if isinstance(given, KubernetesClusterSettings) and given.image is None:
        return  # already reported
    if not isinstance(given, LocalClusterSettings):
        given = given.model_copy(update={"gpus_per_node": 0})
    temporary = (Path(tempfile.gettempdir()),)  # holds the empty working directory that is copied
    alone = settings.model_copy(update={"clusters": {name: given}, "workdirs": temporary})
    (setup,) = build_clusters(alone, 0, b"")
    fresh = not settings.root.exists()
    try:
        with _closed(setup.cluster.backend):
            yield try_group(setup.cluster, setup.site)
    finally:
        if fresh:
            with suppress(OSError):
                settings.root.rmdir()  # if it is empty


@contextmanager
def _closed(backend: Backend) -> Iterator[None]:
    """Close the backend's threads, if it has any."""
    try:
        yield
    finally:
        if isinstance(backend, KubernetesBackend | TorchxBackend):
            backend.close()


def _examine_torchx(given: TorchxClusterSettings, settings: Settings) -> Iterator[CheckResult]:
    with tempfile.TemporaryDirectory() as folder:
        client = build_torchx_client(given, Path(folder))
        try:
            yield _ask_torchx(client, given, settings)
        except BackendUnavailable as error:
            yield "torchx", Verdict.FAILED, f"{error}: torchx_python is {given.torchx_python or sys.executable}"
        finally:
            client.close()
    yield "guarantees", Verdict.WARNING, _WEAKER


def _ask_torchx(client: TorchxClient, given: TorchxClusterSettings, settings: Settings) -> CheckResult:
    """Look for the scheduler, and let it plan an app. Raises BackendUnavailable."""
    known = client.schedulers()
    if given.scheduler not in known:
        return "torchx", Verdict.FAILED, f"torchx knows no scheduler {given.scheduler}, only {', '.join(known)}"
    image, least = str(given.root or settings.root), Resource(cpu=1, gpu=0, memMB=-1)
    role = Role(name="doctor", image=image, entrypoint=given.python, args=["--version"], resource=least)
    try:
        client.plan(AppDef(name="doctor", roles=[role]), given.cfg)
    except LaunchRefused as error:
        return "torchx", Verdict.FAILED, f"cfg is refused: {error}"
    return "torchx", Verdict.OK, f"torchx knows the scheduler {given.scheduler}, and accepts cfg"


def _examine_kubernetes(given: KubernetesClusterSettings, settings: Settings) -> Iterator[CheckResult]:
    verdicts = {True: Verdict.OK, None: Verdict.WARNING, False: Verdict.FAILED}
    client = build_kubernetes_client(given)
    site = build_kubernetes_site(given, settings, namespace=client.namespace)
    try:
        for result in checkup.examine(client, site, ProbeOptions(url=settings.advertise_url)):
            yield result.check, verdicts[result.good], result.sentence
    finally:
        client.close()


def _examine(given: SlurmClusterSettings, settings: Settings) -> Iterator[CheckResult]:
    client, site = build_client(given), build_slurm_site(given, settings)
    began = time.monotonic()
    try:
        conf = client.settings()
        client.jobs()
    except BackendUnavailable as error:
        yield "controller", Verdict.FAILED, str(error)
        return
    yield "controller", Verdict.OK, f"answered two requests within {time.monotonic() - began:.2f} s"
    yield _version(conf)
    yield from _times(conf, given)
    yield _accounting(conf)
    yield from _probe(client, site, settings, given)


def _version(conf: Mapping[str, str]) -> CheckResult:
    text = conf.get("SLURM_VERSION", "")
    numbers = tuple(int(part) for part in re.findall(r"[0-9]+", text)[:2])
    if numbers >= _OLDEST_VERSION:
        return "version", Verdict.OK, f"Slurm {text}"
    return "version", Verdict.WARNING, f"Slurm {text or 'of an unknown version'}; 22.05 and later are tested"


def _times(conf: Mapping[str, str], given: SlurmClusterSettings) -> Iterator[CheckResult]:
    lost_s, message_s, age_s = (_seconds(conf, name) for name in ("SlurmdTimeout", "MessageTimeout", "MinJobAge"))
    kill_s = _seconds(conf, "KillWait")
    yield "SlurmdTimeout", Verdict.OK, f"Slurm notices a dead node after {lost_s} s"
    short = message_s is not None and given.command_timeout_s <= message_s
    advice = f"; set command_timeout_s, now {given.command_timeout_s:g}, above it" if short else ""
    yield "MessageTimeout", Verdict.WARNING if short else Verdict.OK, f"{message_s} s{advice}"
    forgets_early = age_s is not None and age_s < _SHORT_MIN_JOB_AGE_S
    advice = (
        "; if the service is down for longer, it knows of ended jobs only by their exit records"
        if forgets_early
        else ""
    )
    yield "MinJobAge", Verdict.WARNING if forgets_early else Verdict.OK, f"{age_s} s{advice}"
    yield "KillWait", Verdict.OK, f"{kill_s} s from SIGTERM to SIGKILL, where a preemption gives no notice"


def _accounting(conf: Mapping[str, str]) -> CheckResult:
    kind = conf.get("AccountingStorageType", "")
    if kind.endswith("slurmdbd"):
        return "accounting", Verdict.OK, "sacct reports jobs that the controller has forgotten"
    return "accounting", Verdict.OK, "none; jobs that the controller has forgotten are judged by their exit records"


def _probe(
    client: SlurmClient, site: SlurmSite, settings: Settings, given: SlurmClusterSettings
) -> Iterator[CheckResult]:
    """Check on a compute node that it can read and write in the run directory."""
    nonce = secrets.token_hex(8)
    name = f".doctor-{nonce}"
    here = JobFolder(site.service_root, name)
    try:
        with here.make() as folder:
            folder.write(Path("asked"), nonce.encode())
    except OSError as error:
        yield "run directory", Verdict.FAILED, f"this machine cannot write to {site.service_root}: {error}"
        return
    yield "run directory", Verdict.OK, f"this machine can write to {site.service_root}"
    try:
        url = settings.advertise_url or ""
        asked = time.time()
        printed = client.run_on_a_node(
            _options(given), _command(site, site.root / name, url), timeout_s=_PROBE_S + _LATE_S
        )
        found = _parse(printed)
        yield "compute node", Verdict.OK, f"{found.get('host')} ran a task"
        yield from _judge(found, nonce=nonce, asked=asked, answered=time.time(), site=site, url=url)
        yield _reply(here, nonce, site)
    except (BackendUnavailable, LaunchRefused, ValueError) as error:
        yield "compute node", Verdict.FAILED, f"could not run a task: {error}"
    finally:
        drop(here)


def _judge(
    found: Mapping[str, object], *, nonce: str, asked: float, answered: float, site: SlurmSite, url: str
) -> Iterator[CheckResult]:
    if found.get("seen") == nonce:
        yield "shared", Verdict.OK, f"the node sees and writes {site.root}"
    else:
        why = found.get("error") or "the node sees other content"
        yield "shared", Verdict.FAILED, f"the node does not share {site.root}: {why}"
    enough = found.get("enough") is True
    yield "python", Verdict.OK if enough else Verdict.FAILED, f"{site.python} is Python {found.get('python')}"
    if "torch" in found:
        yield "torch", Verdict.OK, f"torch {found['torch']}"
    else:
        yield "torch", Verdict.FAILED, f"{site.python} cannot import torch: {found.get('torch_error')}"
    at = found.get("at")
    ahead_s = max(asked - at, at - answered, 0.0) if isinstance(at, float) else 0.0
    agree = ahead_s < _MAX_CLOCK_DIFFERENCE_S
    sentence = "the node's clock agrees" if agree else f"the clocks differ by at least {ahead_s:.1f} s"
    yield "clock", Verdict.OK if agree else Verdict.WARNING, sentence
    if not url:
        yield "reports", Verdict.OK, "ADVERTISE_URL is not set, so agents report through the run directory"
    elif found.get("reached") is True:
        yield "reports", Verdict.OK, f"the node reaches {url}"
    else:
        why = f"the node cannot reach {url} ({found.get('reach_error')}); its agents report through the run directory"
        yield "reports", Verdict.WARNING, why


def _reply(here: JobFolder, nonce: str, site: SlurmSite) -> CheckResult:
    """Measure how long it takes until the service sees a file that a node wrote."""
    began = time.monotonic()
    while time.monotonic() - began < max(site.settle_s, 1.0):
        with suppress(OSError), here.open() as folder:
            if folder.read(Path("answered"), limit=len(nonce)) == nonce.encode():
                late_s = time.monotonic() - began
                return "delay", Verdict.OK, f"a file from a node appears here after {late_s:.1f} s"
        time.sleep(0.1)
    advice = "set settle_s above the attribute cache time of the file system"
    return "delay", Verdict.FAILED, f"a file from the node did not appear here within {site.settle_s:g} s; {advice}"


def _options(given: SlurmClusterSettings) -> list[str]:
    place = given.defaults
    named = {"partition": place.partition, "account": place.account, "qos": place.qos}
    return [
        "--nodes=1",
        "--ntasks=1",
        "--time=1",
        "--job-name=orchestrator-doctor",
        f"--immediate={_PROBE_S:.0f}",  # srun gives up by itself; a killed srun would leave its job in the queue
        *(f"--{name}={value}" for name, value in named.items() if value),
        *given.options,
    ]


def _command(site: SlurmSite, folder: Path, url: str) -> list[str]:
    modules = [f"module load {shlex.quote(name)} || exit 78" for name in site.modules]
    python = shlex.join([site.python, "-c", _PROGRAM, str(folder), url])
    script = "\n".join([*modules, site.prolog, python])
    return ["bash", *(["-l"] if site.modules else []), "-c", script]


def _parse(printed: str) -> dict[str, object]:
    line = next((line for line in printed.splitlines() if line.startswith("FOUND ")), None)
    if line is None:
        raise ValueError(f"the task printed {printed.strip()[-200:]!r}")
    found = json.loads(line.removeprefix("FOUND "))
    return found if isinstance(found, dict) else {}


def _seconds(conf: Mapping[str, str], name: str) -> int | None:
    match = re.match(r"[0-9]+", conf.get(name, ""))
    return None if match is None else int(match[0])
