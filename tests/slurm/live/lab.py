"""A service with a throw-away Slurm, and jobs for it."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, ExitStack, closing, contextmanager, nullcontext, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from deploy.dev.crash_points.launcher import write_lean_python
from deploy.dev.service import Marked, ThrowawayService, processes_of
from deploy.dev.slurm.cluster import ThrowawaySlurm
from orchestrator.backends import ship
from orchestrator.backends.slurm.backend import SlurmBackend
from orchestrator.backends.slurm.client import SlurmClient
from orchestrator.backends.slurm.commands import SlurmCommands
from orchestrator.backends.slurm.rest import RestAccess, SlurmRest
from orchestrator.backends.slurm.site import SlurmSite
from orchestrator.client import Client
from orchestrator.wire.job_views import JobView
from tests.contract.backends import BackendWorld, RealWorld, site
from tests.jobs import until
from trainer.contract.node import HEAD, LOCAL

PATIENCE_S = 240.0  # for a busy machine
BY_REST = os.environ.get("TEST_BY_SLURMRESTD") == "1"  # services reach Slurm through slurmrestd
SETTINGS = {"poll_s": 0.3, "settle_s": 1, "command_timeout_s": 10, "notice_s": 30, "stop_timeout_s": 5}


@dataclass
class Lab:
    slurm: ThrowawaySlurm
    service: ThrowawayService
    client: Client

    def cli(self, *arguments: str) -> subprocess.CompletedProcess[str]:
        """Run `orchestrator ...` as on a login node."""
        command = [sys.executable, "-m", "orchestrator.cli", *arguments]
        environment = self.service.environment() | {"ORCHESTRATOR_URL": self.service.url}
        return subprocess.run(command, env=environment, capture_output=True, text=True, timeout=500, check=False)

    def submit(self, **fields: Any) -> str:
        return self.client.submit(training(**fields)).id

    def until(self, job_id: str, holds: Callable[[JobView], bool], *, timeout_s: float = PATIENCE_S) -> JobView:
        try:
            return until(self.client, job_id, holds, timeout_s=timeout_s)
        except AssertionError as error:
            raise AssertionError(
                f"{error}\n{self.slurm.run('squeue', '-t', 'all', check=False)}\n{self.printed(job_id)}"
            ) from None

    def at_step(self, job_id: str, step: int) -> JobView:
        job = self.until(job_id, lambda job: (job.step or 0) >= step or job.ended)
        assert not job.ended, job.reason
        return job

    def succeeded(self, job_id: str, *, timeout_s: float = 2 * PATIENCE_S) -> JobView:
        job = self.until(job_id, lambda job: job.ended, timeout_s=timeout_s)
        assert job.state == "SUCCEEDED", f"{job.reason}\n{self.sentences(job_id)}\n{self.printed(job_id)}"
        return job

    def sentences(self, job_id: str) -> str:
        return "\n".join(event.sentence for event in self.client.events(job_id))

    def kinds(self, job_id: str) -> list[str]:
        return [event.kind for event in self.client.events(job_id)]

    def slurm_jobs(self, job_id: str) -> list[list[str]]:
        """Return id, name and state of every Slurm job of a job."""
        lines = self.slurm.run("squeue", "-h", "-t", "all", "-o", "%i|%j|%T").splitlines()
        return [line.split("|") for line in lines if f"|{job_id}-a" in line]

    def slurm_id(self, job_id: str) -> str:
        """Return the Slurm id of the newest attempt."""
        return max(self.slurm_jobs(job_id), key=lambda row: int(row[0]))[0]

    def steps(self, job_id: str) -> list[int]:
        """Return every step that rank 0 reported, in order, over all attempts."""
        found = []
        for path in (self.service.root / job_id / "attempts").glob("*/replica-*/*/progress.jsonl"):
            for line in path.read_text().splitlines():
                reported = json.loads(line)
                if reported.get("rank") == 0 and "loss" in reported.get("metrics", {}):
                    found.append((reported["at"], reported["step"]))
        return [step for _, step in sorted(found)]

    def processes(self, job_id: str) -> Iterator[Marked]:
        return (one for one in processes_of(self.service.root) if one.job_id == job_id)

    def kill(self, job_id: str, *, replica: int | None = None, agents: bool = False, rank: int | None = None) -> None:
        """Kill the agents of a replica, or the workers of a local rank."""
        for one in list(self.processes(job_id)):
            is_it = one.is_agent if agents else one.local_rank == rank
            if is_it and replica in (None, one.replica):
                with suppress(ProcessLookupError):
                    os.kill(one.pid, signal.SIGKILL)

    def printed(self, job_id: str) -> str:
        logs = sorted((self.service.root / job_id / "attempts").rglob("*.log"))
        return "\n".join(f"== {log.parent.name}/{log.name}\n{log.read_text(errors='replace')[-1500:]}" for log in logs)


def training(**fields: Any) -> dict[str, Any]:
    """Build a spec: the bundled trainer on two nodes with a worker each. `trainer` changes its configuration."""
    config = {"preset": "nano", "steps": 60, "global_batch": 8, "micro_batch": 2, "seq_len": 32, "strategy": "ddp"}
    spec = {
        "name": "tiny",
        "cluster": "slurm",
        "run": {"trainer": {**config, **fields.pop("trainer", {})}, "workdir": str(Path(__file__).parent)},
        "topology": {"nodes": "2", "workers_per_node": 1},
        "snapshot": {"interval": "10"},
        "supervise": {"backoff_s": [0.1, 0.2]},
    }
    return {**spec, **fields}


def configuration(slurm: ThrowawaySlurm, **changes: Any) -> str:
    """Render orchestrator.toml. None means the default."""
    given = {**SETTINGS, "python": sys.executable, **_client(slurm), **changes}
    lines = [f"{name} = {_toml(value)}" for name, value in given.items() if value is not None]
    return "\n".join(["[clusters.slurm]", 'backend = "slurm"', *lines]) + "\n"


def by_rest(slurm: ThrowawaySlurm, *, partition: str = "main") -> dict[str, Any]:
    """The settings of a cluster that is reached through slurmrestd."""
    url, token = slurm.start_rest(), str(slurm.token_file)
    return {"rest_url": url, "rest_token_file": token, "conf": None, "defaults": {"partition": partition}}


def _client(slurm: ThrowawaySlurm) -> dict[str, Any]:
    return by_rest(slurm) if BY_REST else {"conf": slurm.environment["SLURM_CONF"]}


@contextmanager
def open_labs(slurm: ThrowawaySlurm, folder: Path) -> Iterator[Callable[..., Lab]]:
    """Yield a function that starts a service; `changes` are settings of the cluster. Check that nothing is left."""
    root = folder / "runs"
    with ExitStack() as stack:

        def build(settings: dict[str, str] | None = None, **changes: Any) -> Lab:
            config = folder / "orchestrator.toml"
            config.write_text(configuration(slurm, **changes))
            given = {"ORCHESTRATOR_CONFIG": str(config), "ORCHESTRATOR_NODE_COOLDOWN_S": "600", **(settings or {})}
            service = stack.enter_context(ThrowawayService(root, given, log_folder=folder))
            return Lab(slurm, service, stack.enter_context(Client(service.url)))

        yield build
        empty_queue(slurm)
        for node in set(slurm.shape.names) - set(slurm.living()):
            slurm.start_node(node)
        slurm.await_idle()
        soon(lambda: not list(processes_of(root)), f"orphans: {list(processes_of(root))}")


@contextmanager
def slurm_world(slurm: ThrowawaySlurm, folder: Path, *, through_rest: bool = False) -> Iterator[BackendWorld]:
    """Build the world for the contract of backends."""
    package = ship.find_package()
    own = SlurmSite(
        root=folder,
        service_root=folder,
        agent_dir=folder / ship.agent_folder(package),
        python=sys.executable,
        shared_paths=(Path("/bin"),),
        settle_s=1,
        listing_s=0.1,
    )
    given = site(folder, python=str(write_lean_python(folder)), rendezvous_host=HEAD, local_address=LOCAL)
    opened: AbstractContextManager[SlurmClient] = rest(slurm) if through_rest else nullcontext(commands(slurm))
    with opened as client:
        yield RealWorld(folder, SlurmBackend(own, client, package=package), given, workdir="/bin", patience_s=60)
    empty_queue(slurm)


def commands(slurm: ThrowawaySlurm) -> SlurmCommands:
    return SlurmCommands(timeout_s=10, conf=slurm.environment["SLURM_CONF"])


def rest(slurm: ThrowawaySlurm) -> closing[SlurmRest]:
    access = RestAccess(url=slurm.start_rest(), token_file=slurm.token_file, default_partition="main")
    return closing(SlurmRest(access, timeout_s=10))


def empty_queue(slurm: ThrowawaySlurm) -> None:
    slurm.run("scancel", "--full", "-u", "root", check=False)
    soon(lambda: not slurm.run("squeue", "-h"), "Slurm's queue is not empty")


def soon(holds: Callable[[], bool], what: str | Callable[[], str], *, timeout_s: float = PATIENCE_S) -> None:
    deadline = time.monotonic() + timeout_s
    while not holds():
        if time.monotonic() > deadline:
            raise AssertionError(what if isinstance(what, str) else what())
        time.sleep(0.1)


def _toml(value: Any) -> str:
    if isinstance(value, dict):
        return "{" + ", ".join(f"{name} = {_toml(each)}" for name, each in value.items()) + "}"
    return json.dumps(value)
