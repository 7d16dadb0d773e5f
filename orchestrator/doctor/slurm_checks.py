"""Check Slurm: its controller and settings, and by a one-minute job whether a compute node can run replicas."""

from __future__ import annotations

import json
import re
import secrets
import shlex
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import closing, suppress
from pathlib import Path

from orchestrator.backends.slurm.commands import SlurmCommands
from orchestrator.backends.slurm.render import Request
from orchestrator.backends.slurm.rest import SlurmRest
from orchestrator.backends.slurm.site import SlurmSite
from orchestrator.backends.slurm.states import Standing, meaning
from orchestrator.bootstrap.cluster_backends import build_client, build_slurm_site
from orchestrator.cluster_settings import SlurmClusterSettings
from orchestrator.doctor.finding import CheckResult, Verdict
from orchestrator.domain.errors import BackendUnavailable, LaunchRefused
from orchestrator.jobfolder.folder import JobFolder
from orchestrator.jobfolder.removal import drop
from orchestrator.settings import Settings

_OLDEST_VERSION = (22, 5)
_PROBE_S = 180.0  # includes the wait for a free node
_LATE_S = 90.0  # beyond _PROBE_S, for the task's own minute and Slurm's delay
_MAX_CLOCK_DIFFERENCE_S = 2.0  # heartbeats carry their sender's time
_SHORT_MIN_JOB_AGE_S = 60
_PRINTED, _MOST_BYTES = "printed", 100_000
_LOOK_EVERY_S = 0.5

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


def examine_slurm(given: SlurmClusterSettings, settings: Settings) -> Iterator[CheckResult]:
    client = build_client(given)
    if isinstance(client, SlurmRest):
        with closing(client):
            yield from _examine(client, given, settings)
    else:
        yield from _examine(client, given, settings)


def _examine(
    client: SlurmCommands | SlurmRest, given: SlurmClusterSettings, settings: Settings
) -> Iterator[CheckResult]:
    began, conf = time.monotonic(), None
    try:
        if isinstance(client, SlurmCommands):
            conf = client.settings()
            version = conf.get("SLURM_VERSION", "")
        else:  # slurmrestd does not report Slurm's settings
            version = client.version()
        client.jobs()
    except BackendUnavailable as error:
        yield "controller", Verdict.FAILED, str(error)
        return
    yield "controller", Verdict.OK, f"answered two requests within {time.monotonic() - began:.2f} s"
    yield _version(version)
    if conf is not None:
        yield from _times(conf, given)
    yield _accounting(client, conf or {})
    yield from _probe(client, build_slurm_site(given, settings), settings, given)


def _version(text: str) -> CheckResult:
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


def _accounting(client: SlurmCommands | SlurmRest, conf: Mapping[str, str]) -> CheckResult:
    without = "jobs that the controller has forgotten are judged by their exit records"
    try:
        if isinstance(client, SlurmRest):
            is_there = client.has_accounting()
        else:
            is_there = conf.get("AccountingStorageType", "").endswith("slurmdbd")
    except BackendUnavailable as error:
        return "accounting", Verdict.WARNING, f"accounting does not answer: {error}; {without}"
    if is_there:
        return "accounting", Verdict.OK, "slurmdbd reports jobs that the controller has forgotten"
    return "accounting", Verdict.OK, f"none; {without}"


def _probe(
    client: SlurmCommands | SlurmRest, site: SlurmSite, settings: Settings, given: SlurmClusterSettings
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
        command = _command(site, site.root / name, url)
        if isinstance(client, SlurmCommands):
            # srun gives up by itself; a killed srun would leave its job in the queue.
            options = [*_options(given), f"--immediate={_PROBE_S:.0f}"]
            printed = client.run_on_a_node(options, command, timeout_s=_PROBE_S + _LATE_S)
        else:
            printed = _run_as_job(client, command, here, given, site)
        found = _parse(printed)
        yield "compute node", Verdict.OK, f"{found.get('host')} ran a task"
        yield from _judge(found, nonce=nonce, asked=asked, answered=time.time(), site=site, url=url)
        yield _reply(here, nonce, site)
    except (BackendUnavailable, LaunchRefused, ValueError) as error:
        yield "compute node", Verdict.FAILED, f"could not run a task: {error}"
    finally:
        drop(here)


def _run_as_job(
    client: SlurmRest, command: Sequence[str], here: JobFolder, given: SlurmClusterSettings, site: SlurmSite
) -> str:
    """Run a command as a job and return its output, which comes through the run directory.

    Raises BackendUnavailable, LaunchRefused.
    """
    folder = site.root / here.name
    options = [*_options(given), f"--chdir={folder}", f"--output={folder}/{_PRINTED}", "--export=NIL", "--no-requeue"]
    request = Request(arguments=tuple(options), script=f"#!/bin/bash\n{shlex.join(command)}\n")
    number, began = client.submit(request), time.monotonic()
    try:
        while (job := client.job(number)) is not None and meaning(job).standing is not Standing.OVER:
            what, limit_s = ("end", _PROBE_S + _LATE_S) if job.nodes else ("start", _PROBE_S)
            if time.monotonic() - began > limit_s:
                raise BackendUnavailable(f"job {number} did not {what} within {limit_s:g} s ({job.state} {job.reason})")
            time.sleep(_LOOK_EVERY_S)
    except BackendUnavailable:
        with suppress(BackendUnavailable):
            client.cancel(number)
        raise
    late = time.monotonic() + max(site.settle_s, 1.0)
    while time.monotonic() < late:
        with suppress(OSError), here.open() as opened:
            if printed := opened.read(Path(_PRINTED), limit=_MOST_BYTES):
                return printed.decode(errors="replace")
        time.sleep(_LOOK_EVERY_S)
    raise BackendUnavailable(f"job {number} left no output in {folder}; does the node share {site.root}?")


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
