"""Faults of agents, cluster, journals and clocks. A fault that justifies another attempt is counted as harm."""

from __future__ import annotations

from dataclasses import replace

from orchestrator.domain.errors import InvalidSpec, NotFound, StoreUnavailable
from orchestrator.domain.job.attempt import AttemptKey
from orchestrator.wire.reports import ReportBody
from tests.fakes.agents import FakeAgent
from tests.fakes.cluster import Fate
from tests.fakes.group import FakeAttempt, Stall
from tests.property.service_faults import ServiceCrash
from tests.property.services import Service
from tests.property.world import World
from trainer.contract import layout
from trainer.contract.exit_record import Outcome, render_exit_record
from trainer.contract.failure import Failure
from trainer.contract.progress import Phase

# Well within the limits of a phase: the shortest limit of a job here is 60 s for steps and 600 s otherwise. Two passes
# may be around it.
_SLOW_S = {Phase.STEP: 20.0, Phase.START: 20.0}
_SLOW_OTHERWISE_S = 500.0


class Misfortunes:
    """Injects faults. `which` is an index, modulo the number of candidates. Without candidates, nothing happens."""

    def __init__(self, world: World) -> None:
        self._world = world
        self._cluster = world.cluster
        self._late: list[ReportBody] = []
        self._forgetful: set[AttemptKey] = set()  # attempts whose journals have lost lines

    def stop(self) -> None:
        """Repair everything: all parts answer, are seen, and have the right time."""
        self.show_everything()
        self._world.store.available = True
        self._cluster.never_forms = False
        self._cluster.silent, self._cluster.fate, self._cluster.forgets = False, Fate.STARTS, False
        for service in self._world.services:
            service.faults.schedule(None)
            service.clock.skew_s = 0.0

    # Agents

    def kill_agent(self, which: int, *, orphans: bool) -> None:
        for key, attempt in self._running(which):
            for agent in [agent for agent in attempt.agents if agent.running][-1:]:
                agent.die(orphans=orphans and agent.claimed)
                attempt.deaths += 1
                spare = attempt.plan.max_nodes - attempt.plan.min_nodes
                if attempt.lost > spare or not attempt.working or attempt.stall is not None:
                    self._harm(key)

    def fail_agents(self, which: int, failure: Failure, *, everyone: bool) -> None:
        for key, attempt in self._running(which):
            self._harm(key)
            met = replace(failure, step=attempt.step or None)
            for agent in attempt.working if everyone else attempt.working[-1:]:
                agent.exit(Outcome.FAILED, met, generation=attempt.generation)

    def stall_group(self, which: int, stall: Stall, *, deaf: bool) -> None:
        for key, attempt in self._running(which):
            if attempt.stall is None:
                self._harm(key)
                attempt.stall = stall
                for agent in attempt.agents:
                    agent.deaf = deaf

    def slow_group(self, which: int) -> None:
        """Let a healthy group be silent for a part of its phase's limit. This must cost nothing."""
        for key, attempt in self._running(which):
            # Its last report may be lost, and finished agents report nothing.
            if key in self._forgetful or any(agent.exit_record for agent in attempt.agents):
                continue
            if attempt.quiet_until is None and attempt.stall is None and attempt.formed and attempt.working:
                slow_s = _SLOW_S.get(attempt.phase, _SLOW_OTHERWISE_S)
                attempt.be_quiet(slow_s)
                self._world.watch(slow_s + 5)

    def finish_group(self, which: int) -> None:
        for _, attempt in self._running(which):
            if attempt.formed:
                attempt.succeed()

    def finish_agent(self, which: int, *, peers_unseen: bool) -> None:
        for key, agent in self._working(which):
            attempt = self._cluster.attempts[key]
            if attempt.formed:
                agent.exit(Outcome.SUCCEEDED, generation=attempt.generation)
                if peers_unseen:
                    self._cluster.hidden |= {(key, peer.replica) for peer in attempt.working}

    def restart_in_place(self, which: int) -> None:
        for _, attempt in self._running(which):
            attempt.restart_in_place()

    def revive_agent(self, which: int) -> None:
        """The cluster starts a dead replica again, unless the service has seen the attempt's end."""
        live = {attempt.key for attempt in self._world.live() if attempt.stopping_since is None}
        dead = [
            (attempt, agent)
            for key, attempt in self._cluster.attempts.items()
            if key in live and not attempt.cut_off and attempt.cause is None
            for agent in attempt.agents
            if agent.claimed and not agent.running and not agent.orphans and agent.exit_record is None
            if not any(other.replica == agent.replica and other is not agent for other in attempt.agents)
        ]
        for attempt, agent in dead[which % len(dead) :][:1] if dead else []:
            attempt.come_back(agent)

    def deafen_agent(self, which: int) -> None:
        for _, agent in self._working(which):
            agent.deaf = True

    # Journals and reports

    def report(self, which: int, *, again: bool) -> None:
        """A report over HTTP: a current one, or a late one that was sent before."""
        reports = [self._report(key, agent) for key, agent in self._working(which)] + self._late[-1:]
        for body in reports[-1:] if again else reports[:1]:
            self._late.append(body)
            service = self._world.services[which % 2]
            try:
                service.intake.accept([body])
            except (NotFound, InvalidSpec, StoreUnavailable):
                continue
            except ServiceCrash:
                service.restart()

    def cut_journal(self, which: int) -> None:
        """The end of a journal is lost, as when a file system loses its cache."""
        for key, agent in self._working(which):
            self._forgetful.add(key)
            for name in (layout.PROGRESS, layout.EVENTS):
                path = agent.folder / name
                if path.exists():
                    content = path.read_bytes()
                    path.write_bytes(content[: len(content) // 2])
                    with path.open("ab") as file:
                        file.write(b"\n")

    # The cluster

    def make_unknown(self, which: int) -> None:
        self._cluster.unknown |= {key for key, _ in self._running(which)}

    def hide_agent(self, which: int) -> None:
        self._cluster.hidden |= {(key, agent.replica) for key, agent in self._working(which)}

    def miss_replica(self, which: int) -> None:
        """A node becomes unreachable for the cluster and for the other agents, which need it."""
        for key, agent in self._working(which):
            attempt = self._cluster.attempts[key]
            if attempt.formed and len(attempt.working) > 1 and attempt.plan.max_nodes == attempt.plan.min_nodes:
                self._harm(key)
                attempt.miss(agent.replica)

    def show_everything(self) -> None:
        self._cluster.unknown.clear()
        self._cluster.hidden.clear()
        self._world.unreadable.clear()

    def show_old_answer(self) -> None:
        self._cluster.stale = True
        self._world.look()
        self._cluster.stale = False

    def end_queueing(self, which: int) -> None:
        for _, attempt in self._running(which):
            self._cluster.leave_queue(attempt)

    def end_by_cluster(self, which: int, cause: Failure, *, records: bool) -> None:
        """The cluster ends an attempt and reports why. `records`: the agents have time to write records."""
        for key, attempt in self._running(which):
            if not attempt.working:
                continue
            self._harm(key)
            attempt.cause = cause
            for agent in [agent for agent in attempt.agents if agent.running]:
                if records and agent.claimed:
                    agent.exit(Outcome.PREEMPTED, generation=attempt.generation)
                else:
                    agent.die(orphans=False)
                    attempt.deaths += 1

    def cut_off(self, which: int) -> None:
        """The nodes of an attempt are declared dead, but the attempt continues there."""
        for key, attempt in self._running(which):
            if attempt.working and not attempt.delayed:
                self._harm(key)
                attempt.cut_off = True

    def jump_clock(self, service: Service, skew_s: float) -> None:
        """Set the clock, unless a submission may be under way: its timeout is measured on this clock."""
        under_way = any(attempt.delayed for attempt in self._cluster.attempts.values())
        if not under_way and all(attempt.handle is not None for attempt in self._world.live()):
            service.clock.skew_s = skew_s

    # Helpers

    def _report(self, key: AttemptKey, agent: FakeAgent) -> ReportBody:
        lines = {
            name: (agent.folder / name).read_bytes() if (agent.folder / name).exists() else b""
            for name in (layout.PROGRESS, layout.EVENTS)
        }
        record = agent.exit_record
        return ReportBody(
            job_id=key.job_id,
            attempt=key.number,
            replica=agent.replica,
            incarnation=agent.incarnation,
            progress=lines[layout.PROGRESS].decode().splitlines(),
            progress_to=len(lines[layout.PROGRESS]),
            events=lines[layout.EVENTS].decode().splitlines(),
            events_to=len(lines[layout.EVENTS]),
            exit_record=None if record is None else render_exit_record(record),
        )

    def _running(self, which: int) -> list[tuple[AttemptKey, FakeAttempt]]:
        """One running attempt, if there is any."""
        running = [(key, attempt) for key, attempt in self._cluster.attempts.items() if attempt.runs]
        return [running[which % len(running)]] if running else []

    def _working(self, which: int) -> list[tuple[AttemptKey, FakeAgent]]:
        """One working agent, if there is any."""
        working = [(key, each) for key, attempt in self._cluster.attempts.items() for each in attempt.working]
        return [working[which % len(working)]] if working else []

    def _harm(self, key: AttemptKey) -> None:
        self._world.harm[key.job_id] += 1
