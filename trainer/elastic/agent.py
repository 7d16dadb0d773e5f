"""The agent's loop: form a group, start this node's workers, watch them, restart them where that can help.

After a failure, `History` decides whether another generation follows. After a change of the group, one always follows.
"""

from __future__ import annotations

import os
import time
from collections.abc import Collection, Mapping, Sequence
from dataclasses import replace
from enum import Enum
from pathlib import Path

from trainer.contract import env, layout
from trainer.contract.exit_record import EventKind
from trainer.contract.failure import Failure, FailureKind, describe_end, is_collateral, is_stop
from trainer.elastic.agent_requests import AgentRequests, Group
from trainer.elastic.causes import Causes
from trainer.elastic.flags import Flags
from trainer.elastic.health.activity import read_activities
from trainer.elastic.health.devices import Devices
from trainer.elastic.health.fitness import NodeUnfit, await_fitness
from trainer.elastic.health.postmortem import Death
from trainer.elastic.health.rank_meter import RankMeter
from trainer.elastic.health.stillness import GroupHang, Stillness
from trainer.elastic.health.watch import RankHang, Watch
from trainer.elastic.keeper_line import AgentState, KeeperLine, Predecessor
from trainer.elastic.records.files import say
from trainer.elastic.records.history import History, Processes, Running
from trainer.elastic.records.record import Record
from trainer.elastic.records.resource_journal import ResourceJournal
from trainer.elastic.rendezvous.failed import RendezvousFailed
from trainer.elastic.rendezvous.formation import Formation, name_ranks
from trainer.elastic.rendezvous.join import known_generation
from trainer.elastic.rendezvous.round_document import Ending, Member, WorkersStore
from trainer.elastic.resource_sampler import ResourceSampler
from trainer.elastic.workers.ending import end_workers, kill_workers
from trainer.elastic.workers.fork_server_client import ForkServerClient
from trainer.elastic.workers.job_environment import render_job_environment
from trainer.elastic.workers.local_workers import LocalWorkers
from trainer.elastic.workers.streams import Output, Streams
from trainer.elastic.workers.survivors import Survivors
from trainer.elastic.workers.workers import (
    AgentPlace,
    Membership,
    find_place,
    render_environment,
    show_own_device,
    substitute,
)

# A replacement agent opens the next round within this time. Dropping a lost node takes longer.
_CHANGE_GRACE_S = 1.5
# The agent of a replica that is stopped leaves the group within this time after the first worker has ended.
_STOP_GRACE_S = 5.0
_LOOK_EVERY_S = 0.02


class End(Enum):
    """How a generation ended."""

    SUCCEEDED = "all workers of this node ended with 0"
    AGAIN = "another generation follows"
    FAILED = "no generation may follow"


class Agent:
    """The agent of one node. Outside a job (no `record`) it counts restarts as torchrun does and journals nothing."""

    def __init__(
        self,
        flags: Flags,
        *,
        workers: int,
        fork_server: ForkServerClient,
        membership: Membership,
        record: Record | None,
        line: KeeperLine | None = None,
    ) -> None:
        """`workers` is their number on this node. The policy in the record, if any, overrides the flags."""
        policy = None if record is None else record.policy
        self.generation = 0
        self.succeeded = False
        self._flags, self._workers, self._fork_server, self._record = flags, workers, fork_server, record
        self._node, self._store_host = membership.node, membership.store_host
        self._rendezvous = rendezvous = membership.rendezvous
        self._stop_timeout_s = flags.stop_timeout_s if policy is None else policy.stop_timeout_s
        self._max_restarts = flags.max_restarts if policy is None else policy.max_restarts
        self.history = History(record, max_restarts=self._max_restarts, min_nodes=flags.limits.min_nodes)
        self._line, before = line, None if line is None else line.before
        stacks_done = 0 if before is None else before.state.stacks_done
        self._requests = None if record is None else AgentRequests(record, stacks_done=stacks_done)
        self._streams = None if record is not None else Streams(flags)
        self._devices = Devices()
        self._memory, self._buddies = membership.memory, membership.buddies
        self._survivors = Survivors(workers)
        self._joining: set[int] = set()  # the local ranks of survivors that have not joined yet
        self._watch: Watch | None = None
        self._stillness: Stillness | None = None
        if record is not None and policy is not None:
            self._watch = Watch(record.incarnation_dir / layout.PROGRESS, policy)
            self._stillness = Stillness(
                policy.heartbeat_timeout_s,
                rendezvous,
                uses_gpu=self._devices.are_used_by,
                read=lambda pids: read_activities(pids, fork_server.server_pid, without={os.getpid()}),
            )
        self._sampler = None if record is None else _build_sampler(record, self._devices)
        self._causes = Causes(record, self._sampler, lambda: fork_server.spares_ended)
        self._local: LocalWorkers | None = None
        self._order_numbers: Sequence[
            int
        ] = ()  # the generation has succeeded when each of these workers has ended with 0
        self._ending = Ending()  # of the previous generation
        self._lost: frozenset[int] = frozenset()  # replicas reported as lost since the group formed
        if before is not None:
            self._continue(before)

    def run(self) -> None:
        """Run generations until one succeeds or none may follow. No worker survives this call.

        Raises RendezvousFailed, NodeUnfit, ForkServerError, Stopped.
        """
        try:
            self._note()  # before the first round has this agent's name
            end = End.SUCCEEDED if self.succeeded else End.AGAIN
            while end is End.AGAIN:
                end = self._run_generation()
            if end is End.SUCCEEDED:
                self.succeeded = True
                self._note()
                self._rendezvous.finish(self.generation)
        finally:
            self._end_workers(self._stop_timeout_s)
            if self._sampler is not None:
                self._sampler.close()
            self._store_host.close()
            if self._buddies is not None:
                self._buddies.close()
            self._memory.close()
            self._survivors.close()
            if self._streams is not None:
                self._streams.close()

    def _continue(self, before: Predecessor) -> None:
        """Continue after an agent that has died. Its workers ended with it, or had succeeded."""
        self.generation, self.succeeded = before.state.generation, before.state.has_succeeded
        if before.state.history:
            self.history.resume(before.state.history)
        if self.succeeded:
            return
        if self.history.began:
            self.history.notice(before.ended_s)
        self._ending = self.history.end(change=before.change, step=self._causes.read_steps().highest)
        self._devices.await_release(before.state.pids)

    def _note(self) -> None:
        """Note what another agent would need, if this one died."""
        if self._line is not None:
            self._line.note_state(
                AgentState(
                    generation=self.generation,
                    restarts=self.history.restarts,
                    node=self._node,
                    has_succeeded=self.succeeded,
                    orders=self._order_numbers,
                    stacks_done=0 if self._requests is None else self._requests.stacks_done,
                    pids=[] if self._local is None else [each.pid for each in self._local.processes.values()],
                    history=self.history.render(),
                )
            )

    def _run_generation(self) -> End:
        place = self._form()
        store = self._store_host.arrange(place, self._rendezvous)
        if store is None:
            self.history.notice()
            self._ending = self.history.end(change="the group changed before its workers started", step=None)
            return End.AGAIN
        local = self._start(place, store)
        while (end := self._look(local)) is None:
            pass
        return end

    def _form(self) -> AgentPlace:
        if self._record is not None:  # first: other nodes must not wait for one that cannot start
            self._await_fitness(self._record)
        if self._record is not None and self._record.is_superseded():
            raise RendezvousFailed("a later incarnation of this replica has begun")
        known = self.generation if self._record is None else max(self.generation, known_generation(self._record))
        place = find_place(self._rendezvous.next_group(known, self._ending, self._report_lost), self._node)
        self.generation, self._lost = place.group.generation, frozenset()
        self._note()
        return place

    def _await_fitness(self, record: Record) -> None:
        sick = self._devices.find_sick(os.environ.get("CUDA_VISIBLE_DEVICES"))
        if sick is not None:
            raise NodeUnfit(Failure(kind=FailureKind.NODE, message=sick))
        waited = await_fitness(record.incarnation_dir)
        if waited is not None:
            obstacle, seconds = waited
            sentence = f"the start of the workers was delayed by {seconds:.1f} s: {obstacle}"
            record.journal(EventKind.NODE_WAITED, sentence, self.generation, seconds=round(seconds, 3))

    def _start(self, place: AgentPlace, store: WorkersStore) -> LocalWorkers:
        survivors = {} if self._local is None else self._local.running
        environs = self._render_environments(place, store, len(survivors))
        if self._line is not None:
            self._line.note_memory(self._memory.own, self._memory.mirrors)
        outputs: Mapping[int, Output] = {}
        if self._streams is not None:
            outputs = self._streams.open(environs)
        folders = {local_rank: self._folder(local_rank, outputs) for local_rank in environs}
        self._causes.begin()
        self._local = local = LocalWorkers(
            place=place, processes={}, environs=environs, outputs=outputs, folders=folders
        )
        local.processes.update(survivors)
        self._joining = {
            local_rank
            for local_rank in survivors
            if self._survivors.order(local_rank, self.generation, environs[local_rank])
        }
        for local_rank in environs.keys() - self._joining:
            self._start_process(local, local_rank)
        if self._watch is not None and self._stillness is not None:
            self._watch.begin(self.generation, place.ranks, time.monotonic())
            self._stillness.begin(time.monotonic())
        self._order_numbers = local.orders
        self._tell_start(local)
        self._note()
        return local

    def _start_process(self, local: LocalWorkers, local_rank: int) -> None:
        """Start a new process, in place of the one that had this local rank, if any.

        That one is killed without a warning: it could still join, and the group would form with a process that ends.
        """
        kill_workers([each for rank, each in local.running.items() if rank == local_rank])
        environ, output = local.environs[local_rank], local.outputs.get(local_rank)
        self._survivors.replace(local_rank, environ)
        local.processes[local_rank] = self._fork_server.start(
            substitute(self._flags.command, local_rank),
            environ,
            local_rank=local_rank,
            stdout=None if output is None else output.stdout,
            stderr=None if output is None else output.stderr,
        )

    def _await_joins(self, local: LocalWorkers) -> None:
        """Replace a survivor that did not join this generation in time by a new process."""
        for local_rank in list(self._joining):
            process = local.processes[local_rank]
            if self._survivors.has_joined(local_rank, process.pid, self.generation):
                self._joining.remove(local_rank)
            elif (code := process.poll()) is not None or self._survivors.is_late(local_rank):
                self._joining.remove(local_rank)
                self._start_process(local, local_rank)
                self._order_numbers = local.orders
                how = "was late" if code is None else describe_end(code)
                self._tell_replaced(local, local_rank, f"process {process.pid} {how}")
                self._note()

    def _tell_replaced(self, local: LocalWorkers, local_rank: int, because: str) -> None:
        pids = {rank: worker.pid for rank, worker in local.by_rank.items()}
        if self._sampler is not None:
            self._sampler.begin(self.generation, pids)
        if self._record is not None:
            rank = local.place.ranks[local_rank]
            sentence = f"rank {rank} joins generation {self.generation} as a new process: {because}"
            self._record.journal(EventKind.WORKER_REPLACED, sentence, self.generation, rank=rank, pid=pids.get(rank))

    def _render_environments(self, place: AgentPlace, store: WorkersStore, survivors: int) -> dict[int, dict[str, str]]:
        own = {env.GENERATION: str(self.generation), env.SURVIVORS: str(survivors)}
        if self._buddies is not None:
            self._buddies.begin(place.group, place.group_rank)
            own |= self._buddies.environment
        shared = {**os.environ, **self._memory.environment, **own}
        if self._record is not None:
            shared |= render_job_environment(self._record, self.generation, os.environ) | self._survivors.environment
            # `known_generation` looks for this folder. A worker that dies at once would not create it.
            (self._record.incarnation_dir / f"g{self.generation}").mkdir(exist_ok=True)
        environs = {}
        for local_rank in range(self._workers):
            environs[local_rank] = shared | render_environment(
                place,
                local_rank,
                store,
                self._flags,
                restarts=self.history.failures_survived,
                max_restarts=self._max_restarts,
            )
            if self._flags.virtual_local_rank:
                environs[local_rank] |= show_own_device(os.environ, local_rank)
        return environs

    def _look(self, local: LocalWorkers) -> End | None:
        """Check the generation once. None while it runs."""
        self._fork_server.listen(self._flags.look_every_s)
        if self._line is not None:
            self._line.flush()
        self._await_joins(local)
        self._run_requests(local)
        # A survivor that ends before it has joined is replaced.
        deaths = [death for death in local.find_deaths() if death.local_rank not in self._joining]
        if deaths:
            return self._follow_deaths(deaths, local)
        if not (local.running or self._joining):
            return End.SUCCEEDED
        hang = self._find_hang(local)
        if hang is not None:
            step = self._causes.read_steps().highest
            return self._follow(self._judge_hang(hang, local), step, hang=True)
        if self._watch is not None:
            self._rendezvous.note_stall(self._watch.is_stalled(time.monotonic()))
        change = self._rendezvous.find_change()
        if change is not None:
            self.history.notice()
            self._report_lost(self._rendezvous.find_lost())
            survivors = self._find_survivors(local)
            return self._follow(True, self._causes.read_steps().highest, change=change, survivors=survivors)
        return None

    def _report_lost(self, lost: Sequence[Member]) -> None:
        node_ranks = {member.node_rank for member in lost if member.node_rank is not None}
        replicas, self._lost = sorted(node_ranks - self._lost), self._lost | node_ranks
        if replicas and self._record is not None:
            sentence = f"the group lost {', '.join(sorted(member.address for member in lost))}"
            step = self._causes.read_steps().highest
            self._record.journal(EventKind.PEER_LOST, sentence, self.generation, replicas=replicas, step=step)

    def _follow(
        self, restarts: bool, step: int | None, *, change: str = "", hang: bool = False, survivors: Collection[int] = ()
    ) -> End:
        """End the workers without waiting for them: SIGTERM, save stacks, SIGKILL. `survivors` continue.

        `step` is the highest completed one.
        """
        self._end_workers(0.0, hang=hang, survivors=survivors if restarts else ())
        self._ending = self.history.end(change=change, step=step)
        return End.AGAIN if restarts else End.FAILED

    def _run_requests(self, local: LocalWorkers) -> None:
        if self._requests is not None:
            size, done = local.place.world_size, self._requests.stacks_done
            self._requests.run(Group(generation=self.generation, world_size=size, workers=local.by_rank))
            if self._requests.stacks_done != done:
                self._note()

    def _find_hang(self, local: LocalWorkers) -> RankHang | GroupHang | None:
        """Judge workers by their reports. If no rank that runs here has ever reported, judge them by what they do."""
        if self._watch is None or self._stillness is None:
            return None
        now_s = time.monotonic()
        stuck = self._watch.look(now_s)
        if stuck or self._watch.has_heard:
            return stuck[0] if stuck else None
        return self._stillness.look(local.by_rank, now_s)

    def _follow_deaths(self, deaths: list[Death], local: LocalWorkers) -> End:
        """Explain the deaths. A worker that lost its peers because the group changed has not failed."""
        self.history.notice()
        steps = self._causes.read_steps()
        failure = self._causes.find(deaths, steps.of(self.generation), local)
        reason = self._explain_change(failure, local)
        if reason is not None:
            self._report_lost(self._rendezvous.find_lost())
        survivors = self._find_survivors(local)
        if reason is not None:
            return self._follow(True, steps.highest, change=reason, survivors=survivors)
        restarts = self._judge(failure, local, steps.highest, survivors=survivors)
        return self._follow(restarts, steps.highest, survivors=survivors)

    def _explain_change(self, failure: Failure, local: LocalWorkers) -> str | None:
        """Why the workers may have ended without a failure: they lost their peers, or all agreed to stop with them.

        A node whose agent died, or that is stopped, gets time to say so.
        """
        if not (is_collateral(failure) or is_stop(failure)):
            return None
        deadline = time.monotonic() + (_STOP_GRACE_S if is_stop(failure) else _CHANGE_GRACE_S)
        while (reason := self._rendezvous.explain_lost_peers()) is None:
            if local.place.nodes == 1 or self._rendezvous.find_change() is not None or time.monotonic() > deadline:
                return None
            time.sleep(_LOOK_EVERY_S)
        return reason

    def _find_survivors(self, local: LocalWorkers) -> list[int]:
        """The local ranks of the running workers that can join another generation."""
        return [
            local_rank
            for local_rank, process in local.running.items()
            if self._survivors.can_stay(local_rank, process.pid, self.generation)
        ]

    def _judge_hang(self, hang: RankHang | GroupHang, local: LocalWorkers) -> bool:
        self.history.notice()
        failure = Failure(kind=FailureKind.HANG, message=hang.sentence, rank=hang.rank, step=hang.step)
        return self._judge(failure, local, hang.step, silent_s=hang.silent_s)

    def _judge(
        self,
        failure: Failure,
        local: LocalWorkers,
        step: int | None,
        *,
        silent_s: float | None = None,
        survivors: Collection[int] = (),
    ) -> bool:
        ending = [rank for local_rank, rank in enumerate(local.place.ranks) if local_rank not in survivors]
        ran = Running(generation=self.generation, ranks=ending, nodes=local.place.nodes)
        restarts = self.history.judge(failure, ran, step=step, silent_s=silent_s)
        self._note()
        return restarts

    def _end_workers(self, patience_s: float, *, hang: bool = False, survivors: Collection[int] = ()) -> None:
        if self._order_numbers:  # from now on, an exit with 0 is no success
            self._order_numbers = ()
            self._note()
        local, self._local = self._local, None
        if local is None:
            return
        ending = {rank: process for rank, process in local.processes.items() if rank not in survivors}
        if survivors:
            self._local = replace(local, processes={rank: local.processes[rank] for rank in survivors})
        if self._sampler is not None:
            self._sampler.end()
        in_job = self._record is not None
        saved = end_workers(
            ending,
            patience_s=patience_s,
            folder_of=lambda local_rank: local.folders[local_rank] if in_job else None,
            hang=hang,
        )
        held_by = self._devices.await_release(process.pid for process in ending.values())
        if held_by:
            say(f"the dead processes {held_by} still hold GPU memory")
        if saved and self._record is not None:
            ranks = sorted(local.place.ranks[local_rank] for local_rank in saved)
            sentence = f"stacks of {name_ranks(ranks)} saved before SIGKILL: {layout.STACKS} in the worker's folder"
            self._record.journal(EventKind.STACKS_SAVED, sentence, self.generation, ranks=ranks)
        if self._streams is not None:
            self._streams.drain()

    def _tell_start(self, local: LocalWorkers) -> None:
        place = local.place
        # Read the pids first. Reading one waits for the fork server, whose answer also sets `because` and `was_spare`.
        pids = {place.ranks[rank]: each.pid for rank, each in local.processes.items()}
        if self._sampler is not None:
            self._sampler.begin(self.generation, pids)
        new = {rank: each for rank, each in local.processes.items() if rank not in self._joining}
        fresh = {place.ranks[rank]: each.because for rank, each in new.items() if each.because}
        for rank, because in fresh.items():
            say(f"rank {rank} is a new process, not a fork: {because}")
        self.history.start(
            Formation(nodes=place.nodes, world_size=place.world_size, because=place.group.change),
            Processes(
                pids=pids,
                fresh=fresh,
                survivors=[place.ranks[local_rank] for local_rank in self._joining],
                spares=[place.ranks[rank] for rank, each in new.items() if each.was_spare],
            ),
            generation=self.generation,
            costs={
                "imported_in_s": round(self._fork_server.imported_s, 3),
                "fork_server_rss_bytes": self._fork_server.rss_bytes,
                "spare_bytes": self._fork_server.spare_bytes,
            },
        )

    def _folder(self, local_rank: int, outputs: Mapping[int, Output]) -> Path:
        if self._record is None:
            return outputs[local_rank].folder
        return layout.worker_dir(self._record.incarnation_dir, self.generation, local_rank)


def _build_sampler(record: Record, devices: Devices) -> ResourceSampler:
    meter = RankMeter(devices, os.environ.get("CUDA_VISIBLE_DEVICES"))
    return ResourceSampler(meter, ResourceJournal(record.incarnation_dir / layout.RESOURCES))
