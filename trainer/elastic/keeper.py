"""The process `elasticrun`: it keeps an agent running, and replaces one that dies. Standard library only.

The agent is forked by the fork server, which has imported torch, so that another agent runs within milliseconds. The
keeper holds what must outlive an agent: the records, the files in memory, and the notes by which the next agent
continues. An agent that ends normally reports its result. One that ends without a result has died: its workers end
with it, and another agent starts the next generation.
"""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import replace

from trainer.contract import layout
from trainer.contract.exit_record import EventKind, ExitRecord, Outcome
from trainer.contract.failure import Failure, FailureKind, describe_end
from trainer.contract.restart_policy import UPTIME_AS_PROGRESS_S
from trainer.elastic.descriptors import wait_readable
from trainer.elastic.flags import Flags
from trainer.elastic.health.postmortem import read_steps
from trainer.elastic.keeper_line import Notes, Predecessor, render_predecessor
from trainer.elastic.memory_files import KeptFiles
from trainer.elastic.records.files import say
from trainer.elastic.records.record import Record, build_exit_record
from trainer.elastic.rendezvous.epochs import Epochs
from trainer.elastic.rendezvous.round_queries import pause_s
from trainer.elastic.stop import StopRequest
from trainer.elastic.workers.fork_server import ForkServer
from trainer.elastic.workers.program import find_imports
from trainer.elastic.workers.wakeup import Wakeup

_MOST_DEATHS = 5  # in a row without progress
_BYTES = 1 << 16


class Keeper:
    """One run of `elasticrun`. `stop` is installed and not armed: the agent gets the signal and ends its workers."""

    def __init__(self, argv: Sequence[str], flags: Flags, record: Record | None, stop: StopRequest) -> None:
        self._argv, self._flags, self._record, self._stop = argv, flags, record, stop
        self._is_alone = flags.limits.max_nodes == 1
        self._wakeup = Wakeup()
        self._reading, self._results = os.pipe2(os.O_CLOEXEC)
        os.set_blocking(self._reading, False)
        self._notes, self._files = Notes(), KeptFiles()
        self._server = self._open_server()
        self._agent = 0  # its pid; 0: none runs
        self._agent_began_s = 0.0
        self._has_signal = False  # the agent has got the signal to stop
        self._order_at_s: float | None = 0.0  # None: an agent is ordered
        self._before: Predecessor | None = None
        self._done: set[int] = set()  # the orders of the agent's workers that ended with 0
        self._deaths = 0  # in a row without progress
        self._best_step = -1

    def run(self) -> tuple[ExitRecord, str]:
        """The exit record and, after a failure, why there is no restart. No process of the agent survives this."""
        try:
            while self._notes.result is None:
                self._turn()
            return self._name_end(*self._notes.result)
        finally:
            self._server.close()
            self._files.close()
            os.close(self._reading)
            os.close(self._results)

    def _open_server(self) -> ForkServer:
        return ForkServer(["torch"], self._results)

    def _turn(self) -> None:
        if self._stop.signal is not None and self._agent == 0:
            has_succeeded = self._notes.state.has_succeeded
            self._notes.result = self._build_result(Outcome.SUCCEEDED if has_succeeded else Outcome.PREEMPTED)
            return
        self._order()
        self._forward_stop()
        timeout_s = None if self._order_at_s is None else max(0.0, self._order_at_s - time.monotonic())
        ends: list[ForkServer | Wakeup | int] = [self._server, self._reading, self._wakeup]
        ready = wait_readable(ends, timeout_s)
        if self._wakeup in ready:
            self._wakeup.wait()
        if self._reading in ready:
            self._read_notes()
        if self._server in ready and self._notes.result is None:
            self._follow_server()

    def _order(self) -> None:
        """Order an agent, if it is time."""
        if self._order_at_s is None or time.monotonic() < self._order_at_s:
            return
        self._order_at_s = None
        self._done.clear()
        self._server.order_agent(
            {
                "argv": list(self._argv),
                "run_id": self._flags.run_id,
                "keeper": os.getpid(),
                "incarnation": None if self._record is None else self._record.incarnation,
                "before": render_predecessor(self._before),
            }
        )
        self._server.prepare(find_imports(self._flags.command))  # while the agent starts

    def _forward_stop(self) -> None:
        if self._stop.signal is not None and self._agent and not self._has_signal:
            self._has_signal = True
            with suppress(ProcessLookupError):
                os.kill(self._agent, self._stop.signal)
                os.kill(self._agent, signal.SIGCONT)  # somebody may have stopped it

    def _read_notes(self) -> None:
        with suppress(BlockingIOError):
            while content := os.read(self._reading, _BYTES):
                self._notes.take(content)
        if self._notes.files is not None and self._agent:  # else the server's message about the agent has not been read
            self._files.take(self._agent, *self._notes.files)
            self._notes.files = None

    def _follow_server(self) -> None:
        messages = self._server.receive()
        if messages is None:
            self._read_notes()
            self._notes.forget_rest()
            if self._agent or self._server.exit_code:
                code = self._server.exit_code
                how = "has closed its socket" if code is None else describe_end(code)
                self._follow_death(self._agent, "the fork server", how)
            else:  # after an agent's death it has ended itself, because it must not fork
                self._order_at_s = time.monotonic()
            if self._notes.result is None:
                self._server = self._open_server()
            return
        for message in messages:
            if "agent" in message:
                self._agent, self._agent_began_s = int(str(message["agent"])), time.monotonic()
                self._has_signal = False
                self._read_notes()
            elif "succeeded" in message:
                self._done.add(int(str(message["succeeded"])))
                self._note_success()
            elif "agent_ended" in message:
                self._read_notes()
                self._notes.forget_rest()
                if self._notes.result is None:
                    how = str(message["why"]) or describe_end(int(str(message["code"])))
                    pid = int(str(message["agent_ended"]))
                    self._follow_death(pid, "the agent", how)

    def _note_success(self) -> None:
        """Once all workers have succeeded, note it in the attempt's folder. The agent may die before it does."""
        self._read_notes()
        state = self._notes.state
        if self._record is not None and not self._is_alone and self._have_workers_succeeded():
            with suppress(OSError):
                Epochs(self._record.attempt_dir).note_finished(state.generation, state.node)

    def _have_workers_succeeded(self) -> bool:
        """Whether all workers ended with 0 by themselves."""
        orders = set(self._notes.state.orders)
        return self._stop.signal is None and bool(orders) and orders <= self._done

    def _follow_death(self, pid: int, name: str, how: str) -> None:
        """An agent has ended without a result. Order another one, or note the result. `name` is what has died."""
        sentence = f"{name} {how}"
        ended_s, self._agent = time.monotonic(), 0
        if self._notes.result is not None:
            return
        self._count_death(ended_s)
        has_succeeded = self._notes.state.has_succeeded or self._have_workers_succeeded()
        self._notes.state = replace(self._notes.state, has_succeeded=has_succeeded, orders=())
        follows = self._decide(sentence)
        if self._notes.result is None:
            self._replace_agent(self._name_change(name, how), ended_s)
        say(f"{sentence}; {follows}")
        if self._record is not None:
            generation = self._notes.state.generation
            self._record.journal(EventKind.AGENT_LOST, f"{sentence}; {follows}", generation, pid=pid)

    def _decide(self, sentence: str) -> str:
        """Return a clause that says what follows the death of an agent. Note the result if no other agent follows."""
        gives_up = self._deaths > _MOST_DEATHS
        if self._notes.state.has_succeeded:
            if not (self._is_alone or self._stop.signal is not None or gives_up):
                return "its workers had succeeded, and another agent tells the group"
            self._notes.result = self._build_result(Outcome.SUCCEEDED)
            return "its workers had succeeded"
        if self._stop.signal is not None:
            self._notes.result = self._build_result(Outcome.PREEMPTED)
            return "its workers ended with it, while they were being stopped"
        if gives_up:
            times = f"{self._deaths} times in a row without progress"
            failure = Failure(kind=FailureKind.INFRASTRUCTURE, message=f"{sentence}; agents died {times}")
            self._notes.result = self._build_result(Outcome.FAILED, failure)
            return f"no other one follows, because agents died {times}"
        return "its workers end, and another agent continues"

    def _replace_agent(self, change: str, ended_s: float) -> None:
        own, mirrors = self._files.paths()
        self._before = Predecessor(state=self._notes.state, change=change, ended_s=ended_s, memory=own, mirrors=mirrors)
        self._order_at_s = ended_s + pause_s(self._deaths)

    def _name_change(self, name: str, how: str) -> str:
        return f"{name} {how}" if self._record is None else f"{name} of replica {self._record.replica} {how}"

    def _count_death(self, ended_s: float) -> None:
        """A new step or a minute is progress, as for generations."""
        highest = None if self._record is None else read_steps(self._record.incarnation_dir / layout.PROGRESS).highest
        step = -1 if highest is None else highest
        began_s, self._agent_began_s = self._agent_began_s, 0.0  # the next agent may never begin
        lasted = began_s > 0 and ended_s - began_s >= UPTIME_AS_PROGRESS_S
        self._deaths = 1 if step > self._best_step or lasted else self._deaths + 1
        self._best_step = max(step, self._best_step)

    def _build_result(self, outcome: Outcome, failure: Failure | None = None) -> tuple[ExitRecord, str]:
        state = self._notes.state
        return build_exit_record(outcome, failure, generation=state.generation, restarts=state.restarts), ""

    def _name_end(self, record: ExitRecord, verdict: str) -> tuple[ExitRecord, str]:
        """Return the result with what only the keeper knows.

        An agent whose workers had all succeeded cannot fail any more. If the service has requested a stop, the agent
        knows only the signal.
        """
        if self._notes.state.has_succeeded and record.outcome is not Outcome.SUCCEEDED:
            return self._build_result(Outcome.SUCCEEDED)
        if record.outcome is not Outcome.PREEMPTED:
            return record, verdict
        outcome = self._stop.outcome(self._record)
        return build_exit_record(outcome, generation=record.generation, restarts=record.restarts), verdict
