"""The Backend port on this machine: `client` reads processes, `states` judges them."""

from __future__ import annotations

import os
import signal
import subprocess
import uuid
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from orchestrator import rundir
from orchestrator.backends.local import client
from orchestrator.backends.local.living import LivingAgents
from orchestrator.backends.local.render import render_processes
from orchestrator.backends.local.states import Machine, ReplicaTraces, sight
from orchestrator.domain.errors import BackendUnavailable, LaunchRefused
from orchestrator.domain.job.attempt import AttemptKey
from orchestrator.domain.job.launch_plan import LaunchPlan
from orchestrator.domain.job.native_request import NativeRequest
from orchestrator.domain.observation.observation import Presence, Sighting
from orchestrator.jobfolder.folder import Folder, JobFolder
from trainer.contract import env, layout
from trainer.contract.agent_record import ProcessIdentity

_LAST_WORDS_BYTES = 4096


@dataclass(frozen=True, slots=True)
class _Child:
    """A process that this service started and has not collected yet."""

    key: AttemptKey
    replica: int
    process: subprocess.Popen[bytes]


class LocalBackend:
    """Run agents detached, so that they outlive the service. A restarted service finds them by records and marks."""

    def __init__(self, root: Path, *, slots: int, living: LivingAgents | None = None) -> None:
        self._root = root
        self._living = living or LivingAgents()
        self._slots = slots
        self._machine = Machine(client.host_name(), client.boot_id())
        self._children: list[_Child] = []

    def render(self, plan: LaunchPlan) -> NativeRequest:
        return render_processes(plan)

    def submit(self, plan: LaunchPlan) -> str:
        """Start one agent per replica. Each call has its own claim token; agents of the losing call exit."""
        _require_startable(plan)
        job, claim = self._job(plan.key), uuid.uuid4().hex
        try:
            rundir.write_launch(job, plan.key.number, plan.policy, replicas=plan.max_nodes)
            with job.make() as folder:
                for replica in range(plan.max_nodes):
                    environment = {**_inherited(), **plan.secrets, **plan.environment(replica), env.CLAIM: claim}
                    log = layout.replica_dir(Path(), plan.key.number, replica) / layout.AGENT_LOG
                    with folder.append(log) as output:
                        started = client.spawn(plan.command, environment, cwd=plan.workdir, output=output)
                    self._children.append(_Child(plan.key, replica, started))
        except OSError as error:
            raise BackendUnavailable(f"could not start {plan.key} on this machine: {error}") from error
        return f"local:{plan.key}"

    def observe(self, launched: Mapping[AttemptKey, int]) -> Mapping[AttemptKey, Sighting]:
        """An attempt whose agents are all alive is looked at again once one has ended, and from time to time."""
        self._reap()
        known = self._living.refresh(launched.keys())
        return {key: known.get(key) or self._observe(key, replicas) for key, replicas in launched.items()}

    def cancel(self, key: AttemptKey, *, force: bool) -> None:
        """Send SIGTERM to the agents. With `force`, kill every process that carries the attempt's mark."""
        processes = list(client.marked(key, self._job_dir(key)))
        if force:
            for process in processes:
                client.send_signal(process, signal.SIGKILL)
            return
        agents = self._agents(key, {process.replica for process in processes})
        for process in processes:
            if process.pid in agents:
                client.send_signal(process, signal.SIGTERM)

    def slots(self) -> int:
        return self._slots

    def _observe(self, key: AttemptKey, replicas: int) -> Sighting:
        """Check the recorded agents. Search all processes for the attempt's mark only if an agent is not alive."""
        sighting, agents = self._build_sighting(key, replicas, search=False)
        if sighting.presence is Presence.RUNNING and all(seen.liveness == "alive" for seen in sighting.replicas):
            self._living.remember(key, sighting, agents)
            return sighting
        return self._build_sighting(key, replicas, search=True)[0]

    def _build_sighting(
        self, key: AttemptKey, replicas: int, *, search: bool
    ) -> tuple[Sighting, Sequence[ProcessIdentity]]:
        """Return what is seen of the attempt, and the recorded agents."""
        try:
            with rundir.open_attempt(self._job(key), key.number) as attempt:
                found = rundir.incarnations(attempt, range(replicas))
                lives = {life.replica: life for life in found}  # the newest of each replica
                remaining = self._remaining_replicas(key) if search else None
                traces = [
                    _traces(replica, lives.get(replica), None if remaining is None else remaining.count(replica))
                    for replica in range(replicas)
                ]
                agents = [each.agent.process for each in traces if each.agent is not None]
                sighting = sight(key, traces, claimed=rundir.was_claimed(attempt), machine=self._machine)
                if sighting.presence is Presence.ABSENT:
                    sighting = replace(sighting, evidence=sighting.evidence + _last_words(attempt))
                return sighting, agents
        except OSError as error:
            why = f"the run directory cannot be read: {error}"
            return Sighting(key=key, presence=Presence.UNKNOWN, evidence=why), ()

    def _remaining_replicas(self, key: AttemptKey) -> list[int]:
        """Return the replica of each process of the attempt. Children count, because an exiting process has no mark."""
        marked = {process.pid: process.replica for process in client.marked(key, self._job_dir(key))}
        children = {child.process.pid: child.replica for child in self._children if child.key == key}
        return list((children | marked).values())

    def _agents(self, key: AttemptKey, replicas: Collection[int]) -> set[int]:
        """Return the pids of the attempt's recorded agents and of this service's children."""
        with rundir.open_attempt(self._job(key), key.number) as attempt:
            records = [life.agent() for life in rundir.incarnations(attempt, replicas)]
        recorded = {record.process.pid for record in records if record is not None}
        return recorded | {child.process.pid for child in self._children}

    def _job(self, key: AttemptKey) -> JobFolder:
        return JobFolder(self._root, key.job_id)

    def _job_dir(self, key: AttemptKey) -> Path:
        return self._root / key.job_id

    def _reap(self) -> None:
        """Collect ended children, so that no dead agent stays a zombie."""
        self._children = [child for child in self._children if child.process.poll() is None]


def _traces(replica: int, life: rundir.Incarnation | None, processes: int | None) -> ReplicaTraces:
    agent = None if life is None else life.agent()
    return ReplicaTraces(
        replica=replica,
        agent=agent,
        agent_runs=agent is not None and client.runs(agent.process),
        exit_record=None if life is None else life.exit(),
        processes=processes,
    )


def _last_words(attempt: Folder) -> str:
    """Return the last line of replica 0's agent log, for an agent that never started."""
    lines = attempt.last_lines(Path(f"replica-0/{layout.AGENT_LOG}"), size=_LAST_WORDS_BYTES)
    return f"; last output: {lines[-1][:200]}" if lines else ""


def _require_startable(plan: LaunchPlan) -> None:
    """Check what no retry can fix, before any process starts. Raises LaunchRefused."""
    if not Path(plan.workdir).is_dir():
        raise LaunchRefused(f"run.workdir {plan.workdir} is not a folder on this machine")
    program = plan.command[0]
    if not os.access(program, os.X_OK):
        raise LaunchRefused(f"{program} is not an executable program on this machine")


def _inherited() -> dict[str, str]:
    """Return the service's environment without the service's settings, for the user's program."""
    return {name: value for name, value in os.environ.items() if not name.startswith("ORCHESTRATOR_")}
