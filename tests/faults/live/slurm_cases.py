"""The faults on a real Slurm: how each is made, and when it is over."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Callable
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from tests.faults import training
from tests.slurm.live.lab import Lab

FOREVER = "import time; time.sleep(7200)"
CUT_S = 60.0
SUSPENDED_S = 40.0
APART = "apart"  # a partition of two nodes
TRAINING = Path(training.__file__)

# Rank 1 waits for a file and removes it, so the fault happens once.
_ON_SIGN = """\
import os, time
while os.environ["RANK"] != "1" or not os.path.exists({sign!r}):
    time.sleep(0.1)
os.unlink({sign!r})
{then}
"""
# Rank 1 writes. After a restart it first waits until the disk has space again.
_WRITER = """\
import os, time
while os.environ["RANK"] != "1":
    time.sleep(1)
if os.environ["TORCHELASTIC_RESTART_COUNT"] != "0":
    time.sleep(60)
while True:
    with open({path!r}, "a") as file:
        file.write("x" * 8192)
    time.sleep(0.2)
"""


@dataclass(slots=True)
class FaultyJob:
    """A job of the lab. `hosts`: the hosts of its first attempt, by replica."""

    lab: Lab
    job: str
    folder: Path
    hosts: list[str] = field(default_factory=list)
    at: datetime | None = None  # of the fault
    goal: int | None = None  # a step soon after the fault was repaired

    def slurm(self, *command: str) -> str:
        return self.lab.slurm.run(*command)

    @property
    def slurm_id(self) -> str:
        """Return the Slurm id of its newest attempt."""
        return str(list(self.lab.client.attempts(self.job))[-1].handle)

    @property
    def sign(self) -> Path:
        return self.folder / "now"

    def signal(self, replica: int, how: signal.Signals) -> None:
        """Send a signal to the worker of a replica."""
        for one in list(self.lab.processes(self.job)):
            if one.replica == replica and one.local_rank == 0:
                os.kill(one.pid, how)

    @property
    def since_s(self) -> float:
        assert self.at is not None
        return (datetime.now(UTC) - self.at).total_seconds()

    def begins_again(self) -> bool:
        """Return whether workers have started since the fault, or the job has ended."""
        assert self.at is not None
        job = self.lab.client.job(self.job)
        kinds = [event.kind for event in self.lab.client.events(self.job) if event.at >= self.at]
        return job.ended or (job.state == "RUNNING" and "generation.started" in kinds)

    def trains_on(self) -> bool:
        """Return whether the job has made steps since the fault was repaired, or has ended."""
        job = self.lab.client.job(self.job)
        return job.ended or (self.goal is not None and (job.step or 0) >= self.goal)


Inject = Callable[[FaultyJob], object]


@dataclass(frozen=True, slots=True, kw_only=True)
class Case:
    """`repair` runs when `lasted` holds. The fault ends after it."""

    fault: str
    inject: Inject
    spec: Callable[[Path], dict[str, Any]]
    over: Callable[[FaultyJob], bool] = FaultyJob.begins_again
    repair: Inject | None = None
    lasted: Callable[[FaultyJob], bool] = lambda one: True


def sleeps(_: Path) -> dict[str, Any]:
    return script(FOREVER)


def trains(_: Path) -> dict[str, Any]:
    """Build a job that makes five steps a second."""
    run = {"script": str(TRAINING), "args": ["/nowhere"], "workdir": str(TRAINING.parent)}
    return {**script(""), "name": "training", "run": run}


def script(code: str, **fields: Any) -> dict[str, Any]:
    """Build a job with a worker without torch on each of two nodes."""
    return {
        "name": "script",
        "cluster": "slurm",
        "run": {"command": [sys.executable, "-c", code], "workdir": str(Path(__file__).parent)},
        "topology": {"nodes": "2", "workers_per_node": 1},
        **fields,
    }


def _on_sign(then: str, **fields: Any) -> Callable[[Path], dict[str, Any]]:
    return lambda folder: script(_ON_SIGN.format(sign=str(folder / "now"), then=then), **fields)


def _writes(folder: Path) -> dict[str, Any]:
    return script(_WRITER.format(path=str(folder.parent / "disk" / "notes")))


def _fill(one: FaultyJob) -> None:
    subprocess.run(["dd", "if=/dev/zero", f"of={_filler(one)}", "bs=1M"], capture_output=True, check=False, timeout=60)


def _filler(one: FaultyJob) -> Path:
    return one.folder.parent / "disk" / "filler"


def _requeue(one: FaultyJob) -> None:
    number = one.slurm_id
    one.slurm("scontrol", "update", f"jobid={number}", "requeue=1")
    one.slurm("scontrol", "requeue", number)


def _preempt(one: FaultyJob) -> None:
    wanted = ["-N2", f"--nodelist={','.join(one.hosts)}", "--time=60", "-o", "/dev/null", "--wrap=sleep 3600"]
    one.slurm("sbatch", "-p", "high", *wanted)


def _drain(one: FaultyJob) -> None:
    one.slurm("scontrol", "update", f"nodename={one.hosts[1]}", "state=drain", "reason=disk")


def _is_shown_as_draining(one: FaultyJob) -> bool:
    main = next(part for part in one.lab.client.clusters()[0].partitions if part.name == "main")
    return main.broken.get(one.hosts[1], "").startswith("draining")


def _lose_the_only_node(one: FaultyJob) -> None:
    """Another job takes the other node of the partition. The administrator marks the loss before Slurm notices."""
    one.slurm("sbatch", "-p", APART, "--time=60", "-o", "/dev/null", "--wrap=sleep 3600")
    one.lab.slurm.kill_node(one.hosts[0])
    one.slurm("scontrol", "update", f"nodename={one.hosts[0]}", "state=down", "reason=power")


def _has_a_record(one: FaultyJob) -> bool:
    return any(node.name == one.hosts[0] for node in one.lab.client.nodes())


CASES = (
    Case(
        fault="a worker is killed",
        spec=sleeps,
        inject=lambda one: one.lab.kill(one.job, replica=1, rank=0),
    ),
    Case(fault="a worker hangs", spec=trains, inject=lambda one: one.signal(1, signal.SIGSTOP)),
    Case(
        fault="an agent is killed",
        spec=sleeps,
        inject=lambda one: one.lab.kill(one.job, replica=1, agents=True),
    ),
    Case(
        fault="a node loses its power",
        spec=sleeps,
        inject=lambda one: one.lab.slurm.kill_node(one.hosts[1]),
    ),
    Case(
        fault="the network is cut, and healed after 60 s",
        spec=trains,
        inject=lambda one: one.lab.slurm.cut(one.hosts[1]),
        repair=lambda one: one.lab.slurm.repair(one.hosts[1]),
        lasted=lambda one: one.since_s >= CUT_S,
        over=FaultyJob.trains_on,
    ),
    Case(
        fault="the network is cut in one direction",
        spec=trains,
        inject=lambda one: one.lab.slurm.mute(one.hosts[1]),
    ),
    Case(fault="a replica is evicted", spec=sleeps, inject=_requeue),
    Case(fault="the job is preempted", spec=sleeps, inject=_preempt),
    Case(
        fault="it is deleted by hand",
        spec=sleeps,
        inject=lambda one: one.slurm("scancel", one.slurm_id),
    ),
    Case(fault="a node is drained", spec=sleeps, inject=_drain, over=_is_shown_as_draining),
    Case(
        fault="the time limit is reached",
        spec=lambda folder: {**trains(folder), "placement": {"time_limit_s": 180}},
        inject=lambda one: None,
    ),
    Case(
        fault="the node of the store is lost",
        spec=sleeps,
        inject=lambda one: one.lab.slurm.kill_node(one.hosts[0]),
    ),
    Case(
        fault="a worker runs out of memory",
        spec=_on_sign("held = b'x' * (3 << 30)\ntime.sleep(600)", resources={"memory_gb": 1}),
        inject=lambda one: one.sign.touch(),
    ),
    Case(
        fault="the disk is full",
        spec=_writes,
        inject=_fill,
        repair=lambda one: _filler(one).unlink(),
        lasted=FaultyJob.begins_again,
    ),
)

SUSPENSION = Case(
    fault="Slurm suspends it for 40 s",
    spec=trains,
    inject=lambda one: one.slurm("scontrol", "suspend", one.slurm_id),
    repair=lambda one: one.slurm("scontrol", "resume", one.slurm_id),
    lasted=lambda one: one.since_s >= SUSPENDED_S,
    over=FaultyJob.trains_on,
)
AVOIDED = Case(
    fault="the only node that fits is lost, and comes back",
    spec=lambda _: script(FOREVER, topology={"nodes": "1"}, placement={"partition": APART}),
    inject=_lose_the_only_node,
    repair=lambda one: one.lab.slurm.start_node(one.hosts[0]),
    lasted=_has_a_record,
)
