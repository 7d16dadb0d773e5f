"""Find an agent's group: one agent, or several that share a document (round_document.py) in a TCP store."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Protocol

from trainer.contract.fence import parse_term
from trainer.contract.layout import fence_dir, replica_dir
from trainer.elastic.health.awake import AwakeClock
from trainer.elastic.records.files import say
from trainer.elastic.records.record import Record
from trainer.elastic.rendezvous import round_queries, rounds
from trainer.elastic.rendezvous.backoff import NOTICE_AFTER_S, Backoff, Notice, Unchanged
from trainer.elastic.rendezvous.failed import RendezvousFailed
from trainer.elastic.rendezvous.round_document import Ending, Limits, Member, Round, Stage, WorkersStore
from trainer.elastic.rendezvous.store_thread import PARTING_S, StoreThread
from trainer.elastic.rendezvous.succession import MINORITY_S, Succession

_LONGEST_PASS_S = 0.5  # for one turn of a waiting loop; the rest of a longer turn was a pause of this process
_ASK_S = 2.0  # for an optional answer of the store
_PAUSES = "waiting before the workers start again: the last generations made no progress"
_ALONE = "waiting before the workers start again: most of the group is missing and may go on without this node"
_VISIT_S = 5.0  # for an agent that only reports a success to find the store; a lost store is replaced sooner
_LAST_TO_FINISH_S = 300.0  # torchrun's exit barrier


ReportLost = Callable[[Sequence[Member]], None]


class Rendezvous(Protocol):
    """How an agent finds its group. Call its methods on the main thread. Each may raise RendezvousFailed."""

    def next_group(self, generation: int, ending: Ending, report_lost: ReportLost) -> Round:
        """Wait for the next formed round that includes this agent. `generation` is the highest that it knows of.

        `ending` is how this agent's previous round ended, if there was one. `report_lost` is called with members of
        that round that are lost meanwhile.
        """

    def publish_store(self, store: WorkersStore) -> None:
        """Publish the address at which the workers meet."""

    def await_store(self) -> WorkersStore | None:
        """Wait for the address at which the workers meet. None if the group changes before it is published."""

    def find_change(self) -> str | None:
        """How the group has changed since it formed. None while it has not. Never blocks."""

    def note_stall(self, is_stalled: bool) -> None:
        """Note whether the workers of this agent make no step for suspiciously long. Never blocks."""

    def find_lost(self) -> Sequence[Member]:
        """The members that the group has lost since it formed. Never blocks."""

    def explain_lost_peers(self) -> str | None:
        """Why workers may have lost their peers without a failure: the group changed, or this node was unreachable.

        None if there is no such reason. Takes at most two seconds.
        """

    def report_stillness(self, report: str | None) -> None:
        """Report to the group that this agent's workers are still. None withdraws the report."""

    def find_stillness(self) -> Sequence[str] | None:
        """The reports of all agents whose workers run. None while a report is missing. Never blocks."""

    def finish(self, generation: int) -> None:
        """Note that the workers of this node have succeeded in a generation, even if an earlier agent started them.

        The agent that serves the store waits for the other nodes.
        """

    def leave(self, reason: str | None = None) -> None:
        """Leave the group. A reason closes the rendezvous for all. Never raises. Takes at most ten seconds."""


class SingleNodeRendezvous:
    """The rendezvous of a group of one agent."""

    def __init__(self, me: Member) -> None:
        self._me = me
        self._round = Round(number=-1)
        self._unsettled = 0  # generations in a row that did not last

    def next_group(self, generation: int, ending: Ending, report_lost: ReportLost) -> Round:
        if self._round.generation:
            self._unsettled = 0 if ending.lasted else self._unsettled + 1
        pause_s = round_queries.pause_s(self._unsettled)
        if pause_s > NOTICE_AFTER_S:
            say(_PAUSES)
        time.sleep(pause_s)
        known = max(self._round.generation, generation)
        self._round = Round(
            number=self._round.number + 1,
            stage=Stage.FORMED,
            generation=known + 1,
            members=(self._me,),
            change=ending.change,
        )
        return self._round

    def publish_store(self, store: WorkersStore) -> None:
        self._round = replace(self._round, store=store)

    def await_store(self) -> WorkersStore | None:
        return self._round.store

    def find_change(self) -> str | None:
        return None

    def note_stall(self, is_stalled: bool) -> None:
        return

    def find_lost(self) -> Sequence[Member]:
        return ()

    def explain_lost_peers(self) -> str | None:
        return None

    def report_stillness(self, report: str | None) -> None:
        self._round = rounds.report_stillness(self._round, self._round.number, self._me.node, report)

    def find_stillness(self) -> Sequence[str] | None:
        return round_queries.find_stillness(self._round)

    def finish(self, generation: int) -> None:
        return

    def leave(self, reason: str | None = None) -> None:
        return


class StoreRendezvous:
    """The rendezvous of several agents, over the store that `succession` finds."""

    def __init__(
        self, succession: Succession, me: Member, limits: Limits, is_ready: Callable[[], bool] = lambda: True
    ) -> None:
        """`is_ready`: whether workers could start at once. It is asked while others train without this agent."""
        self._me, self._limits, self._is_ready = me, limits, is_ready
        self._succession = succession
        self._timing, self._observer = succession.timing, succession.observer
        self._store = StoreThread(succession, me.node, limits)
        self._formed: Round | None = None

    def next_group(self, generation: int, ending: Ending, report_lost: ReportLost) -> Round:
        before, self._formed = self._formed, None
        self._observer.note_stall(False)
        self._store.start_once()
        is_new = before is None and round_queries.newcomer_can_wait(self._store.look(), self._me.node, self._limits)
        me = self._me = replace(self._me, generation=generation, is_ready=not is_new)
        now = self._store.amend(partial(_rejoin, before=before, ending=ending, me=me, limits=self._limits))
        clock, backoff, missing = AwakeClock(_LONGEST_PASS_S), Backoff(), list[Member]()
        present, opened = Unchanged(clock), Unchanged(clock)
        waiting = Notice(_describe_wait(now, me, self._limits))
        pausing, alone = Notice(_PAUSES), Notice(_ALONE)
        while not (now.stage is Stage.FORMED and now.has(me.node)):
            self._raise_if_over(now, clock.now_s(), was_member=before is not None)
            if not me.is_ready:
                is_ready = self._is_ready() or not round_queries.newcomer_can_wait(now, me.node, self._limits)
                me = replace(me, is_ready=is_ready)
            pause_s = round_queries.pause_s(now.short_lived)
            time_is_up = present.measure_s(now.nodes) > self._timing.last_call_s
            lone_s = MINORITY_S if round_queries.is_minority(now) else 0.0
            pauses = opened.measure_s(now.number) < max(pause_s, lone_s)
            step = partial(_step, me=me, limits=self._limits, pauses=pauses, time_is_up=time_is_up)
            lost = [member for member in round_queries.find_missing(now, before) if member not in missing]
            if lost:
                report_lost(lost)
                missing += lost
            if step(now) == now:
                (alone if lone_s > pause_s else pausing if pauses else waiting).give()
                backoff.wait(len(now.members))
                now = self._store.look()
            else:
                now = self._store.amend(step)
        self._formed = now
        return now

    def publish_store(self, store: WorkersStore) -> None:
        assert self._formed is not None
        self._store.amend(partial(rounds.publish_store, number=self._formed.number, store=store))

    def await_store(self) -> WorkersStore | None:
        assert self._formed is not None
        clock, backoff = AwakeClock(_LONGEST_PASS_S), Backoff()
        while True:
            now = self._store.look()
            if now.number == self._formed.number and now.store is not None:
                return now.store
            if round_queries.find_change(now, self._formed, self._me.node, self._limits) is not None:
                return None
            if clock.now_s() > self._timing.join_s:
                words = f"group rank 0 published no store for the workers within {self._timing.join_s:.0f} s"
                raise RendezvousFailed(words, was_member=True)
            backoff.wait(len(self._formed.members))

    def find_change(self) -> str | None:
        if self._formed is None:
            return None
        now = self._store.newest()
        silent_s = self._find_silence(now)
        if silent_s is not None:
            self._store.hang_up()
            if self._observer.is_lossy(self._store.host):
                return "too many packets of the node that serves the rendezvous were lost"
            return f"the rendezvous store has not answered for {silent_s:.0f} s"
        return round_queries.find_change(now, self._formed, self._me.node, self._limits)

    def note_stall(self, is_stalled: bool) -> None:
        self._observer.note_stall(is_stalled)

    def find_lost(self) -> Sequence[Member]:
        if self._formed is None:
            return ()
        now = self._store.newest()
        if self._find_silence(now) is None:
            return round_queries.find_lost(now, self._formed)
        return [member for member in self._formed.members if member.node == self._store.host]

    def _find_silence(self, now: Round) -> float | None:
        """For how many seconds the store has been silent, if that is too long for the workers."""
        assert self._formed is not None
        silent_s = self._store.find_silence()
        if silent_s is None or len(self._formed.members) < 2:
            return None
        needs_it = not round_queries.can_form_without(now, {self._me.node}, self._limits)
        return None if needs_it and silent_s < self._timing.patience_s else silent_s

    def explain_lost_peers(self) -> str | None:
        assert self._formed is not None
        with suppress(RendezvousFailed):
            reason = round_queries.explain_lost_peers(self._store.look(_ASK_S), self._formed, self._me.node)
            if reason is not None:
                return reason
        if self._store.find_silence() is not None:
            return "the rendezvous store does not answer"
        absence_s = self._store.find_absence()
        return None if absence_s is None else f"this node was out of contact with the others for {absence_s:.0f} s"

    def report_stillness(self, report: str | None) -> None:
        assert self._formed is not None
        number, node = self._formed.number, self._me.node
        self._store.amend(partial(rounds.report_stillness, number=number, node=node, report=report))

    def find_stillness(self) -> Sequence[str] | None:
        return round_queries.find_stillness(self._store.newest())

    def finish(self, generation: int) -> None:
        self._succession.note_finished(generation)
        note = partial(rounds.finish, generation=generation, node=self._me.node, limits=self._limits)
        if self._formed is None:
            self._succession.forbid_serving()
            self._store.start_once()
            self._store.amend(note, _VISIT_S)
            return
        now = self._store.amend(note)
        self._await_others(self._formed, now)

    def _await_others(self, formed: Round, now: Round) -> None:
        """Serve the store until the workers of all other nodes have succeeded."""
        clock, backoff = AwakeClock(_LONGEST_PASS_S), Backoff()
        while self._store.serves and formed.nodes & now.nodes - now.finished and clock.now_s() < _LAST_TO_FINISH_S:
            if now.stage is Stage.CLOSED:
                return
            backoff.wait(len(formed.members))
            now = self._store.look()

    def leave(self, reason: str | None = None) -> None:
        if self._store.is_open:  # else this agent has joined nothing, and the thread may wait long for the store
            go = partial(rounds.drop, nodes={self._me.node})
            with suppress(RendezvousFailed):
                self._store.amend(go if reason is None else partial(rounds.close, reason=reason), timeout_s=PARTING_S)
            self._store.stop()
        self._observer.close()

    def _raise_if_over(self, now: Round, waited_s: float, *, was_member: bool) -> None:
        """Raises RendezvousFailed if no group with this agent can follow, or if it has waited for too long."""
        later = round_queries.find_successor(now, self._me)
        if now.stage is Stage.CLOSED:
            words = f"the rendezvous is closed: {now.reason}"
        elif later is not None:
            words = f"a later incarnation of replica {self._me.node_rank} has joined, from {later.address}"
        elif waited_s > self._timing.join_s + round_queries.pause_s(now.short_lived):
            present = ", ".join(member.address for member in now.members) or "none"
            number, least = len(now.members), self._limits.min_nodes
            words = f"{number} of at least {least} nodes joined within {self._timing.join_s:.0f} s: {present}"
        else:
            return
        raise RendezvousFailed(words, was_member=was_member)


def _describe_wait(now: Round, me: Member, limits: Limits) -> str:
    if me.node in now.lossy:
        return "waiting beside the group until the network between it and this node is good"
    if now.stage is Stage.FORMED:
        return "waiting to join the group that trains"
    return f"waiting for other nodes; a group needs at least {limits.min_nodes}"


def _rejoin(now: Round, *, before: Round | None, ending: Ending, me: Member, limits: Limits) -> Round:
    """Open the round after the one that this agent has left, unless another agent has. Then join it.

    An agent that has just started may have the name of one that died. It leaves that one's group.
    """
    is_left = now.generation <= me.generation if before is None else before.number == now.number
    is_mine = is_left and now.has(me.node)
    return rounds.join(rounds.reopen(now, me, limits, ending) if is_mine else now, me, limits)


def _step(now: Round, *, me: Member, limits: Limits, pauses: bool, time_is_up: bool) -> Round:
    joined = rounds.join(now, me, limits)
    return joined if pauses else rounds.form(joined, limits, time_is_up=time_is_up)


def known_generation(record: Record) -> int:
    """The highest generation of this attempt that has a term in the fence or a folder of this replica."""
    terms = (parse_term(path.name) for path in _listed(fence_dir(record.job_dir)))
    begun = [term.generation for term in terms if term is not None and term.attempt == record.attempt]
    folders = replica_dir(record.job_dir, record.attempt, record.replica).glob("*/g*")
    return max([0, *begun, *(int(folder.name[1:]) for folder in folders if folder.name[1:].isdecimal())])


def _listed(folder: Path) -> list[Path]:
    try:
        return list(folder.iterdir())
    except OSError:
        return []
