"""Judge a replica on this machine from its traces: alive, dead or unknown. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from orchestrator.domain.job.attempt import AttemptKey
from orchestrator.domain.observation.observation import Liveness, Presence, ReplicaSighting, Sighting
from trainer.contract.agent_record import AgentRecord
from trainer.contract.exit_record import ExitRecord


@dataclass(frozen=True, slots=True, kw_only=True)
class ReplicaTraces:
    """The traces of one replica. `processes` counts processes with its mark; None means that nobody searched."""

    replica: int
    agent: AgentRecord | None
    agent_runs: bool
    exit_record: ExitRecord | None
    processes: int | None


@dataclass(frozen=True, slots=True)
class Machine:
    host: str
    boot_id: str


def sight(key: AttemptKey, traces: Sequence[ReplicaTraces], *, claimed: bool, machine: Machine) -> Sighting:
    """Judge an attempt from its replicas' traces."""
    if not claimed and all(trace.agent is None and not trace.processes for trace in traces):
        return Sighting(
            key=key, presence=Presence.ABSENT, evidence="no agent claimed the attempt and no process carries its mark"
        )
    replicas = tuple(_sight_replica(trace, machine) for trace in traces)
    seen = {replica.liveness for replica in replicas}
    if Liveness.ALIVE in seen:
        presence = Presence.RUNNING
    else:
        presence = Presence.UNKNOWN if Liveness.UNKNOWN in seen else Presence.GONE
    return Sighting(key=key, presence=presence, evidence="; ".join(r.evidence for r in replicas), replicas=replicas)


def _sight_replica(trace: ReplicaTraces, machine: Machine) -> ReplicaSighting:
    liveness, evidence = _judge(trace, machine)
    leftovers = liveness is Liveness.DEAD and bool(trace.processes)
    return ReplicaSighting(replica=trace.replica, liveness=liveness, evidence=evidence, leftovers=leftovers)


def _judge(trace: ReplicaTraces, machine: Machine) -> tuple[Liveness, str]:
    name = f"replica {trace.replica}"
    if trace.exit_record is not None and not trace.agent_runs:
        return Liveness.DEAD, f"{name}'s agent recorded that it {trace.exit_record.outcome.value}"
    if trace.agent is None:
        if trace.processes:
            return Liveness.ALIVE, f"{name}'s agent is starting"
        return Liveness.DEAD, f"{name}'s agent never started"
    process = trace.agent.process
    # A boot id identifies one boot of one machine, even if the host was renamed since.
    if process.boot_id != machine.boot_id and process.host != machine.host:
        return Liveness.UNKNOWN, f"{name}'s agent ran on {process.host}; this machine is {machine.host}"
    if process.boot_id != machine.boot_id:
        return Liveness.DEAD, f"{name}'s agent ended when {machine.host} was rebooted"
    if trace.agent_runs:
        return Liveness.ALIVE, f"{name}'s agent runs as process {process.pid}"
    return Liveness.DEAD, f"{name}'s agent, process {process.pid}, is gone and left no record"
