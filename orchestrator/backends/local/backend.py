"""The Backend port on this machine. Glue: client looks, states judge."""

from __future__ import annotations

import os
import signal
import subprocess
import uuid
from collections.abc import Collection, Mapping
from dataclasses import replace
from pathlib import Path

from orchestrator import rundir
from orchestrator.backends.local import client
from orchestrator.backends.local.render import render_processes
from orchestrator.backends.local.states import Machine, ReplicaTraces, sight
from orchestrator.domain.attempt import AttemptKey
from orchestrator.domain.errors import BackendUnavailable, LaunchRefused
from orchestrator.domain.launch import LaunchPlan, NativeRequest
from orchestrator.domain.observation import Presence, Sighting
from trainer.contract import env, layout

_LAST_WORDS_BYTES = 4096


class LocalBackend:
    """Agents are detached: they outlive the service, and the next one finds them by their records and their mark."""

    def __init__(self, root: Path, *, slots: int) -> None:
        self._root = root
        self._slots = slots
        self._machine = Machine(client.host_name(), client.boot_id())
        self._children: list[subprocess.Popen[bytes]] = []

    def render(self, plan: LaunchPlan) -> NativeRequest:
        return render_processes(plan)

    def submit(self, plan: LaunchPlan) -> str:
        """Start one agent per replica. One claim token for this call: agents of another call will refuse to work."""
        _require_startable(plan)
        job_dir = Path(plan.job_dir)
        claim = uuid.uuid4().hex
        try:
            rundir.write_launch(job_dir, plan.key.number, plan.policy, replicas=len(plan.commands))
            for replica, command in enumerate(plan.commands):
                folder = layout.replica_dir(job_dir, plan.key.number, replica)
                folder.mkdir(parents=True, exist_ok=True)
                environment = {**_inherited(), **plan.secrets, **plan.environments[replica], env.CLAIM: claim}
                log = folder / layout.AGENT_LOG
                self._children.append(client.spawn(command, environment, cwd=plan.workdir, log=log))
        except OSError as error:
            raise BackendUnavailable(f"could not start {plan.key} on this machine: {error}") from error
        return f"local:{plan.key}"

    def observe(self, keys: Collection[AttemptKey]) -> Mapping[AttemptKey, Sighting]:
        self._reap()
        return {key: self._observe(key) for key in keys}

    def cancel(self, key: AttemptKey, *, force: bool) -> None:
        """Ask the agents to stop, or kill every process that carries the attempt's mark."""
        processes = list(client.marked(key, self._root / key.job_id))
        if force:
            for process in processes:
                client.send_signal(process, signal.SIGKILL)
            return
        agents = self._agents(key)
        for process in processes:
            if process.pid in agents:
                client.send_signal(process, signal.SIGTERM)

    def slots(self) -> int:
        return self._slots

    def _observe(self, key: AttemptKey) -> Sighting:
        """Look cheaply first; only when not every agent is at work, search all processes for the attempt's mark."""
        sighting = self._look(key, search=False)
        if sighting.presence is Presence.RUNNING and all(seen.liveness == "alive" for seen in sighting.replicas):
            return sighting
        return self._look(key, search=True)

    def _look(self, key: AttemptKey, *, search: bool) -> Sighting:
        job_dir = self._root / key.job_id
        try:
            lives = {life.replica: life for life in rundir.incarnations(job_dir, key.number)}  # the last of each
            replicas = rundir.read_replicas(job_dir, key.number) or 1
            marks = [process.replica for process in client.marked(key, job_dir)] if search else None
            traces = [
                _traces(replica, lives.get(replica), None if marks is None else marks.count(replica))
                for replica in range(replicas)
            ]
            sighting = sight(key, traces, claimed=rundir.was_claimed(job_dir, key.number), machine=self._machine)
            if sighting.presence is Presence.ABSENT:
                return replace(sighting, evidence=sighting.evidence + self._last_words(job_dir, key))
            return sighting
        except OSError as error:
            return Sighting(key=key, presence=Presence.UNKNOWN, evidence=f"the run directory cannot be read: {error}")

    def _last_words(self, job_dir: Path, key: AttemptKey) -> str:
        """What an agent that never came up printed last."""
        file = rundir.open_regular(layout.replica_dir(job_dir, key.number, 0) / layout.AGENT_LOG)
        if file is None:
            return ""
        with file:
            file.seek(max(0, file.seek(0, os.SEEK_END) - _LAST_WORDS_BYTES))
            lines = file.read(_LAST_WORDS_BYTES).decode(errors="replace").strip().splitlines()
        return f"; its last words: {lines[-1][:200]}" if lines else ""

    def _agents(self, key: AttemptKey) -> set[int]:
        """Pids of the attempt's agents, as recorded and as started by this service."""
        recorded = {
            record.process.pid
            for life in rundir.incarnations(self._root / key.job_id, key.number)
            if (record := life.agent()) is not None
        }
        return recorded | {child.pid for child in self._children}

    def _reap(self) -> None:
        """Collect ended children, so that a dead agent is not seen as a zombie for ever."""
        self._children = [child for child in self._children if child.poll() is None]


def _traces(replica: int, life: rundir.Incarnation | None, processes: int | None) -> ReplicaTraces:
    agent = None if life is None else life.agent()
    return ReplicaTraces(
        replica=replica,
        agent=agent,
        agent_runs=agent is not None and client.runs(agent.process),
        exit_record=None if life is None else life.exit(),
        processes=processes,
    )


def _require_startable(plan: LaunchPlan) -> None:
    """Raises LaunchRefused for what no later try would mend, before anything has started."""
    if not Path(plan.workdir).is_dir():
        raise LaunchRefused(f"run.workdir {plan.workdir} is no folder on this machine")
    program = plan.commands[0][0]
    if not os.access(program, os.X_OK):
        raise LaunchRefused(f"{program} is no program on this machine")


def _inherited() -> dict[str, str]:
    """The service's own environment for the user's program, without the service's settings."""
    return {name: value for name, value in os.environ.items() if not name.startswith("ORCHESTRATOR_")}
