"""The jobs of a scenario and, for the mixed trace, what happens to them."""

from __future__ import annotations

import random
from collections.abc import Mapping
from dataclasses import dataclass, field

from orchestrator.domain.errors import Refused
from orchestrator.domain.specs.spec import JobSpec
from orchestrator.simulator.scenario import Scenario
from orchestrator.simulator.simulated_job import SimulatedJob, devices_of
from orchestrator.simulator.virtual_clock import HOUR, SECOND, us

FAILS = "SIMULATED_CRASH"  # a variable that makes a job's program fail at the same step each time
HEARTBEAT_S = 1800.0  # set in each job, because simulated agents report too few lines to learn a deadline from
_SIZES = (1, 1, 1, 2, 2, 4, 8)  # nodes of a job, unless the scenario sets them
_FAILS_AT = 0.3  # fraction of the job's work
_MAX_TIMES_MEAN = 12.0  # the longest job, as a multiple of the mean
_SCRIPTED_NODES = 50  # enough for all of the scripted jobs at once


@dataclass(frozen=True, slots=True)
class Action:
    """A request or a fault at some hour. `name` is one that `scripted_actions` knows."""

    at_h: float
    name: str
    arguments: Mapping[str, object] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class JobTemplate:
    name: str
    work_us: int  # of each device, without failures
    actions: tuple[Action, ...] = ()
    nodes: str = "2"
    after: tuple[str, ...] = ()
    fails: bool = False
    max_runtime_s: float | None = None


# Together, their faults and requests use every rule of the policy.
SCRIPTED = (
    JobTemplate("short", 2 * HOUR),
    JobTemplate("follower", 3 * HOUR, after=("short",)),
    JobTemplate("held", 3 * HOUR, (Action(0.5, "suspend"), Action(1, "resume")), after=("short",)),
    JobTemplate("withdrawn", 3 * HOUR, (Action(0.5, "cancel"),), after=("short",)),
    JobTemplate("cancelled", 30 * HOUR, (Action(3, "cancel"),)),
    JobTemplate("suspended", 8 * HOUR, (Action(1, "suspend"), Action(3, "resume"))),
    JobTemplate("scaled", 8 * HOUR, (Action(2, "scale", {"nodes": "4"}),)),
    JobTemplate("snapped", 8 * HOUR, (Action(2, "snapshot"),)),
    JobTemplate("crashing", 6 * HOUR, (Action(12, "retry", {"run": {"env": {FAILS: None}}}),), fails=True),
    JobTemplate("unlucky", 8 * HOUR, (Action(1, "kill-worker"), Action(2, "kill-worker"))),
    JobTemplate("elastic", 20 * HOUR, (Action(2, "kill-node"),), nodes="2:4"),
    JobTemplate("severed", 8 * HOUR, (Action(1.5, "cut-off"),)),
    JobTemplate("hanging", 8 * HOUR, (Action(1.5, "hang"),)),
    JobTemplate("deaf", 8 * HOUR, (Action(1.5, "hang-deaf"),)),
    JobTemplate("orphaned", 8 * HOUR, (Action(1.2, "orphan"),)),
    JobTemplate("overlong", 30 * HOUR, max_runtime_s=5 * 3600),
    JobTemplate("stuck", 6 * HOUR, (Action(0, "never-forms"),)),
    JobTemplate("unanswered", 6 * HOUR, (Action(0, "lost"),)),
    JobTemplate("forgotten", 6 * HOUR, (Action(0, "vanishes"),)),
)


def build_jobs(scenario: Scenario) -> list[SimulatedJob]:
    """Build the jobs. Raises Refused if a job is larger than the cluster."""
    if scenario.trace != "mixed":
        return _build_jobs(scenario, scenario.node_count)
    nodes = scenario.node_count - _SCRIPTED_NODES
    if nodes < 1:
        least = (_SCRIPTED_NODES + 1) * scenario.gpus_per_node
        raise Refused(f"--trace mixed needs {_SCRIPTED_NODES} nodes for its own jobs: use --gpus {least} or more")
    return [*_build_jobs(scenario, nodes), *(_build(scenario, template) for template in SCRIPTED)]


def _build_jobs(scenario: Scenario, nodes: int) -> list[SimulatedJob]:
    """Return one job that trains all the time, or many jobs that queue."""
    if scenario.nodes is not None and int(scenario.nodes.rpartition(":")[2]) > nodes:
        raise Refused(f"--nodes {scenario.nodes} is more than the {nodes} nodes of the cluster")
    rng = random.Random(f"{scenario.seed}/jobs")
    return [_build_job(scenario, number, nodes, rng) for number in range(1, scenario.jobs + 1)]


def _build_job(scenario: Scenario, number: int, nodes: int, rng: random.Random) -> SimulatedJob:
    alone = scenario.jobs == 1
    size = nodes if alone else min(rng.choice(_SIZES), nodes)
    fails = scenario.trace == "crash-loop" and number == 1
    name = "main" if alone else f"job-{number:06d}"
    topology = scenario.nodes or str(size)
    return _build(scenario, JobTemplate(name, _draw_work_us(scenario, rng), nodes=topology, fails=fails))


def _draw_work_us(scenario: Scenario, rng: random.Random) -> int:
    if scenario.job_hours is None:
        return scenario.days_us
    if scenario.jobs == 1:
        return us(scenario.job_hours * 3600)
    return us(min(rng.expovariate(1.0), _MAX_TIMES_MEAN) * scenario.job_hours * 3600) + SECOND


def _build(scenario: Scenario, template: JobTemplate) -> SimulatedJob:
    document = {
        "name": template.name,
        "run": {"command": ["train"], "workdir": "/", "env": {FAILS: "1"} if template.fails else {}},
        "topology": {"nodes": template.nodes, "workers_per_node": scenario.gpus_per_node},
        "supervise": {"heartbeat_timeout_s": HEARTBEAT_S, "max_runtime_s": template.max_runtime_s},
        "after": list(template.after),
    }
    spec = JobSpec.model_validate(document)
    work = template.work_us * devices_of(spec)
    return SimulatedJob(spec, work, scenario, fails_at=int(work * _FAILS_AT) if template.fails else None)
