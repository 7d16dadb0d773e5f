"""Every fault on a real Slurm at default settings: the rows of docs/failures.md.

All jobs run and get their faults together, because Slurm takes minutes to notice some faults.
"""

from __future__ import annotations

import os
import re
import subprocess
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from pathlib import Path

import pytest

from deploy.dev.slurm.cluster import NoSlurm, ThrowawaySlurm
from deploy.dev.slurm.conf import Shape, address
from orchestrator.simulator import failure_traces
from orchestrator.wire.job_views import JobView
from tests.faults.cells import Cell, check, tell
from tests.faults.live.slurm_cases import APART, AVOIDED, CASES, SUSPENSION, Case, FaultyJob, trains
from tests.simulator.scenarios import NEVER_H, simulate
from tests.slurm.live.lab import SETTINGS, Lab, open_labs, soon

pytestmark = pytest.mark.timeout(2400)

# Slurm's defaults (slurm.conf(5)) for settings that the throw-away Slurm shortens.
DEFAULTS = {
    "SlurmdTimeout": "300",
    "SlurmctldTimeout": "120",
    "MessageTimeout": "10",
    "KillWait": "30",
    "UnkillableStepTimeout": "60",
    "MinJobAge": "300",
    "AuthInfo": "cred_expire=120",
    "SchedulerParameters": "default_queue_depth=100",
}
SPARE_NODES = 8
NODES = 2 * len(CASES) + 2 + SPARE_NODES  # without the two nodes of the partition APART
SHAPE = Shape(nodes=NODES + 2, cpus=1, memory_limits=True, changes={**DEFAULTS, "DefMemPerCPU": "2000"})
PATIENCE_S = 900.0
AWAY_S = 60.0
_ERROR = re.compile(r"DistNetworkError: [^;]*")  # torch's error; its text depends on how the connection ended
SCHEDULER_AWAY, SERVICE_AWAY = "the scheduler is away for an hour", "the service is away for an hour"


@dataclass(frozen=True, slots=True, kw_only=True)
class Outcome:
    """`before`: the verdict just before the repair."""

    cell: Cell
    job: JobView
    sentences: str
    before: str = ""


@pytest.fixture(scope="module")
def outcomes(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Mapping[str, Outcome | str]]:
    """Outcomes by fault; a text if the fault was not over in time. Skip without Slurm; in CI fail."""
    folder = tmp_path_factory.mktemp("faults")
    try:
        slurm = ThrowawaySlurm(SHAPE)
        with small_disk(folder / "disk"), slurm, open_labs(slurm, folder) as open_lab:
            lab = open_lab({"ORCHESTRATOR_NODE_COOLDOWN_S": "3600"}, **dict.fromkeys(SETTINGS))
            with two_set_apart(slurm):
                found = inject_all(lab, folder, [*CASES, SUSPENSION, AVOIDED])
            for fault, inject in ((SCHEDULER_AWAY, scheduler_away), (SERVICE_AWAY, service_away)):
                found[fault] = inject(lab, folder)
            yield found
            heal(slurm)
    except NoSlurm as error:
        if os.environ.get("CI") == "true":
            pytest.fail(f"CI must test Slurm: {error}")
        pytest.skip(str(error))


@contextmanager
def small_disk(folder: Path) -> Iterator[None]:
    """Mount a small disk. Nodes see it only if they start afterwards."""
    folder.mkdir()
    subprocess.run(["mount", "-t", "tmpfs", "-o", "size=32m", "tmpfs", folder], check=True, timeout=60)
    try:
        yield
    finally:
        subprocess.run(["umount", "--lazy", folder], check=True, timeout=60)


@contextmanager
def two_set_apart(slurm: ThrowawaySlurm) -> Iterator[None]:
    everything, rest = f"nodes=n[1-{NODES + 2}]", f"nodes=n[1-{NODES}]"
    for partition in ("main", "high"):
        slurm.run("scontrol", "update", f"partitionname={partition}", rest)
    slurm.run(
        "scontrol",
        "create",
        f"partitionname={APART}",
        f"nodes=n[{NODES + 1}-{NODES + 2}]",
        "state=up",
        "maxtime=infinite",
    )
    try:
        yield
    finally:
        for partition in ("main", "high"):
            slurm.run("scontrol", "update", f"partitionname={partition}", everything)


def heal(slurm: ThrowawaySlurm) -> None:
    for node in slurm.living():
        slurm.repair(node)
        slurm.run("scontrol", "update", f"nodename={node}", "state=resume", check=False)


def inject_all(lab: Lab, folder: Path, cases: list[Case]) -> dict[str, Outcome | str]:
    faulty = {case: begin(lab, folder / f"case-{number}", case) for number, case in enumerate(cases)}
    for case, one in faulty.items():
        await_work(one, steps=20 if case.spec is trains else 0)
    for case, one in faulty.items():
        one.at = datetime.now(UTC)
        case.inject(one)
    found: dict[str, Outcome | str] = {}
    before: dict[Case, str] = {}
    deadline = time.monotonic() + PATIENCE_S
    while faulty:
        for case, one in list(faulty.items()):
            if case.repair is not None and case not in before and case.lasted(one):
                before[case] = lab.client.why(one.job).verdict
                case.repair(one)
                one.goal = (lab.client.job(one.job).step or 0) + 20
            if (case.repair is None or case in before) and case.over(one):
                found[case.fault] = look(one, before.get(case, ""))
            elif time.monotonic() > deadline:
                found[case.fault] = f"not over: {lab.client.job(one.job).reason}\n{lab.sentences(one.job)}"
            else:
                continue
            del faulty[case]
            end(one)
        time.sleep(0.5)
    return found


def end(one: FaultyJob) -> None:
    if not one.lab.client.job(one.job).ended:
        one.lab.client.cancel(one.job)


def begin(lab: Lab, folder: Path, case: Case) -> FaultyJob:
    folder.mkdir()
    return FaultyJob(lab, lab.client.submit(case.spec(folder)).id, folder)


def await_work(one: FaultyJob, *, steps: int) -> None:
    """Wait for the workers, and for some steps so that the step time is known."""
    one.lab.until(one.job, lambda job: job.state == "RUNNING" and (job.step or 0) >= steps)
    given = one.slurm("squeue", "-h", "-j", one.slurm_id, "-o", "%N").strip()
    one.hosts = one.slurm("scontrol", "show", "hostnames", given).split()


def look(one: FaultyJob, before: str = "") -> Outcome:
    assert one.at is not None
    client = one.lab.client
    names = dict.fromkeys(one.lab.slurm.shape.names, "another node")
    names |= {host: f"node-{number}" for number, host in enumerate(one.hosts)}
    names |= {address(one.lab.slurm.slot, host): names[host] for host in one.hosts}
    names |= {f"job {attempt.handle}": "job …" for attempt in client.attempts(one.job)}
    names |= {str(one.folder.parent): "/scratch"}
    cell = tell(client, one.job, one.at, names=names)
    cell = replace(cell, said=_ERROR.sub("DistNetworkError: …", cell.said))
    return Outcome(cell=cell, job=client.job(one.job), sentences=one.lab.sentences(one.job), before=before)


def scheduler_away(lab: Lab, folder: Path) -> Outcome:
    one = begin_training(lab, folder / "scheduler-away")
    lab.slurm.kill_controller()
    try:
        soon(lambda: not lab.client.clusters()[0].answers, "the outage is not noticed")
        soon(lambda: one.since_s > AWAY_S, "time")
    finally:
        lab.slurm.start_controller()
    soon(lambda: lab.client.clusters()[0].answers, "the end of the outage is not noticed")
    return go_on(one)


def service_away(lab: Lab, folder: Path) -> Outcome:
    one = begin_training(lab, folder / "service-away")
    lab.service.kill()
    try:
        soon(lambda: one.since_s > AWAY_S, "time")
    finally:
        lab.service.start()
    return go_on(one)


def begin_training(lab: Lab, folder: Path) -> FaultyJob:
    folder.mkdir()
    one = FaultyJob(lab, lab.client.submit(trains(folder)).id, folder)
    await_work(one, steps=20)
    one.at = datetime.now(UTC)
    return one


def go_on(one: FaultyJob) -> Outcome:
    one.goal = (one.lab.client.job(one.job).step or 0) + 20
    soon(one.trains_on, "it does not continue")
    found = look(one)
    end(one)
    return found


def outcome(outcomes: Mapping[str, Outcome | str], fault: str) -> Outcome:
    found = outcomes[fault]
    assert isinstance(found, Outcome), found
    return found


@pytest.mark.parametrize("fault", [*(case.fault for case in CASES), SCHEDULER_AWAY, SERVICE_AWAY])
def test_a_fault_matches_the_page(outcomes: Mapping[str, Outcome | str], fault: str) -> None:
    found = outcome(outcomes, fault)
    check("slurm", fault, found.cell)


def test_an_hour_without_the_scheduler_costs_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    """On the virtual clock: outages of the scheduler and of the store, which equal an outage of the service."""
    monkeypatch.setattr(failure_traces, "_OUTAGE_US", 3600 * 1_000_000)
    result, quiet = simulate(trace="outage", mtbf_h=NEVER_H, days=10), simulate(mtbf_h=NEVER_H, days=10)
    assert result.incidents > 5
    assert result.attempts == 1
    assert result.bins == quiet.bins


def test_a_suspended_job_continues_in_its_attempt(outcomes: Mapping[str, Outcome | str]) -> None:
    found = outcome(outcomes, SUSPENSION.fault)
    assert (found.job.attempts, found.job.restarts, found.cell.costs) == (1, 0, "nothing"), found
    assert (found.job.generation or 0) <= 2, found
    assert "an administrator suspended Slurm job" in found.before


def test_an_avoided_node_is_used_after_five_minutes(outcomes: Mapping[str, Outcome | str]) -> None:
    found = outcome(outcomes, AVOIDED.fault)
    assert found.job.attempts == 2, found
    assert "no other node that fits became free in five minutes" in found.sentences
