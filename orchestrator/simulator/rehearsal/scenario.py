"""What is rehearsed: the cluster, its failures, the jobs, and what their owners do."""

from __future__ import annotations

import random
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from orchestrator.domain.errors import Refused
from orchestrator.domain.specs.spec import JobSpec
from orchestrator.simulator.rehearsal.agenda import SECOND, us
from orchestrator.simulator.rehearsal.closed_form import young_interval_s
from orchestrator.simulator.rehearsal.traces import TRACES

CRASHES = "SIMULATED_CRASH"  # in a job's environment: its program fails at the same step each time
HEARTBEAT_S = 1800.0
_HOUR = 3600 * SECOND
_SIZES = (1, 1, 1, 2, 2, 4, 8)  # nodes of one of many jobs, where nobody says
_CRASHES_AT = 0.3  # of its work
_LONGEST_H = 12.0  # times the mean


@dataclass(frozen=True, slots=True, kw_only=True)
class Scenario:
    """`nodes`: of each job, as a spec has it; None: all of the cluster for one job, mixed sizes for many."""

    gpus: int
    mtbf_h: float
    days: float
    seed: int = 1
    trace: str = "exponential"
    gpus_per_node: int = 8
    spares: int | None = None  # nodes beyond `gpus`; None: as many as are needed
    jobs: int = 1
    nodes: str | None = None
    job_hours: float | None = None  # of training without failures, the mean of many jobs; None: all of the time
    snapshot_stall_s: float = 5.0
    snapshot_interval_s: float | None = None  # None: Young's, from the job's share of the failures
    restart_s: float = 90.0
    restart_in_place_s: float = 20.0
    repair_h: float = 24.0
    step_s: float = 10.0
    pass_pause_s: float = 0.0  # the least time between two passes of the supervisor
    without: tuple[str, ...] = ()  # rules of the policy

    @property
    def node_count(self) -> int:
        return self.gpus // self.gpus_per_node

    @property
    def days_us(self) -> int:
        return us(self.days * 86400)

    def mtbf_s(self, devices: int) -> float:
        """Of a job on so many of the devices."""
        return self.mtbf_h * 3600 * self.gpus / devices

    def interval_s(self, devices: int) -> float:
        if self.snapshot_interval_s is not None:
            return self.snapshot_interval_s
        return young_interval_s(self.snapshot_stall_s, self.mtbf_s(devices))

    def check(self) -> None:
        """Raises Refused."""
        if self.gpus % self.gpus_per_node:
            raise Refused(f"--gpus {self.gpus} is no multiple of {self.gpus_per_node} GPUs per node")
        if self.trace not in TRACES:
            raise Refused(f"--trace {self.trace} is unknown; known: {', '.join(TRACES)}")


@dataclass(frozen=True, slots=True, kw_only=True)
class Entry:
    """One job of the rehearsal. `work` in device-microseconds."""

    id: str
    spec: JobSpec
    work: int
    arrives_us: int = 0
    crash_at: int | None = None

    @property
    def devices(self) -> int:
        return devices_of(self.spec)


@dataclass(frozen=True, slots=True, kw_only=True)
class Deed:
    """Something that is done to one job at some time: by its owner (a request's name), or by the world."""

    at_us: int
    job: str
    what: str
    value: Mapping[str, object] = field(default_factory=dict)


def devices_of(spec: JobSpec) -> int:
    per_node = spec.topology.workers_per_node
    return spec.topology.max_nodes * (per_node if isinstance(per_node, int) else 1)


def build_spec(scenario: Scenario, name: str, nodes: str, extra: Mapping[str, object] | None = None) -> JobSpec:
    document: dict[str, object] = {
        "name": name,
        "run": {"command": ["train"], "workdir": "/"},
        "topology": {"nodes": nodes, "workers_per_node": scenario.gpus_per_node},
        "supervise": {"heartbeat_timeout_s": HEARTBEAT_S},
    }
    for part, fields in (extra or {}).items():
        known = document.get(part)
        document[part] = {**known, **fields} if isinstance(known, dict) and isinstance(fields, Mapping) else fields
    return JobSpec.model_validate(document)


def build_entries(scenario: Scenario, nodes_free: int) -> list[Entry]:
    """The jobs that nobody casts for a part: one that trains all the time, or many that queue for the cluster."""
    if scenario.nodes is not None and int(scenario.nodes.rpartition(":")[2]) > nodes_free:
        raise Refused(f"--nodes {scenario.nodes} is more than the {nodes_free} nodes that there are")
    rng = random.Random(f"{scenario.seed}/jobs")
    return [_entry(scenario, number, nodes_free, rng) for number in range(1, scenario.jobs + 1)]


def _entry(scenario: Scenario, number: int, nodes_free: int, rng: random.Random) -> Entry:
    alone = scenario.jobs == 1
    size = nodes_free if alone else min(rng.choice(_SIZES), nodes_free)
    crashing = scenario.trace == "crash-loop" and number == 1
    extra = {"run": {"env": {CRASHES: "1"}}} if crashing else None
    spec = build_spec(scenario, "main" if alone else f"job-{number:06d}", scenario.nodes or str(size), extra)
    work = _work_us(scenario, rng) * devices_of(spec)
    return Entry(id=spec.name, spec=spec, work=work, crash_at=int(work * _CRASHES_AT) if crashing else None)


def _work_us(scenario: Scenario, rng: random.Random) -> int:
    if scenario.job_hours is None:
        return scenario.days_us
    if scenario.jobs == 1:
        return us(scenario.job_hours * 3600)
    return us(min(rng.expovariate(1.0), _LONGEST_H) * scenario.job_hours * 3600) + SECOND


# A cast for the mixed trace: (name, nodes, hours of work, more of its spec, what happens to it at which hour).
_Part = tuple[str, str, float, Mapping[str, object], Sequence[tuple[float, str, Mapping[str, object]]]]
_CAST: tuple[_Part, ...] = (
    ("short", "2", 2, {}, ()),
    ("follower", "2", 3, {"after": ["short"]}, ()),
    ("held", "2", 3, {"after": ["short"]}, ((0.5, "suspend", {}), (1, "resume", {}))),
    ("withdrawn", "2", 3, {"after": ["short"]}, ((0.5, "cancel", {}),)),
    ("cancelled", "2", 30, {}, ((3, "cancel", {}),)),
    ("suspended", "2", 8, {}, ((1, "suspend", {}), (3, "resume", {}))),
    ("scaled", "2", 8, {}, ((2, "scale", {"nodes": "4"}),)),
    ("snapped", "2", 8, {}, ((2, "snapshot", {}),)),
    (
        "crashing",
        "2",
        6,
        {"run": {"env": {CRASHES: "1"}}},
        ((12, "retry", {"run": {"env": {CRASHES: None}}}),),
    ),
    ("unlucky", "2", 8, {}, ((1, "kill-worker", {}), (2, "kill-worker", {}))),
    ("elastic", "2:4", 20, {}, ((2, "kill-node", {}),)),
    ("severed", "2", 8, {}, ((1.5, "cut-off", {}),)),
    ("hanging", "2", 8, {}, ((1.5, "hang", {}),)),
    ("deaf", "2", 8, {}, ((1.5, "hang-deaf", {}),)),
    ("orphaned", "2", 8, {}, ((1.2, "orphan", {}),)),
    ("overlong", "2", 30, {"supervise": {"max_runtime_s": 5 * 3600}}, ()),
    ("stuck", "2", 6, {}, ((0, "never-forms", {}),)),
    ("unanswered", "2", 6, {}, ((0, "lost", {}),)),
    ("forgotten", "2", 6, {}, ((0, "vanishes", {}),)),
)
CAST_NODES = 50  # enough for all of it at once


def build_cast(scenario: Scenario) -> tuple[list[Entry], list[Deed]]:
    """Jobs whose fates between them bring every rule of the policy into play."""
    entries: list[Entry] = []
    deeds: list[Deed] = []
    for name, nodes, hours, extra, happenings in _CAST:
        spec = build_spec(scenario, name, nodes, extra)
        work = us(hours * 3600) * devices_of(spec)
        crash_at = int(work * _CRASHES_AT) if name == "crashing" else None
        entries.append(Entry(id=name, spec=spec, work=work, crash_at=crash_at))
        deeds += [Deed(at_us=us(at_h * 3600), job=name, what=what, value=value) for at_h, what, value in happenings]
    return entries, deeds
