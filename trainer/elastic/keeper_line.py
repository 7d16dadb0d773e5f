"""An agent's line to its keeper: notes for the agent that may follow it, and its result. Standard library only."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field

from trainer.contract.exit_record import ExitRecord, parse_exit_record, render_exit_record
from trainer.elastic.descriptors import wait_writable
from trainer.elastic.records.files import say

Files = Sequence[Sequence[int]]


@dataclass(frozen=True, kw_only=True)
class AgentState:
    """What an agent leaves to the next one."""

    generation: int = 0  # the highest of which it may have started workers
    restarts: int = 0
    node: str = ""  # its name in the group
    has_succeeded: bool = False
    orders: Sequence[int] = ()  # the numbers of its workers' orders; empty once it ends the workers itself
    stacks_done: int = 0  # the last request for stacks that was carried out
    pids: Sequence[int] = ()  # of its workers
    history: str = ""  # as rendered by History


@dataclass(frozen=True, kw_only=True)
class Predecessor:
    """The agent before this one: its state, how and when it ended, and its files in memory as paths."""

    state: AgentState
    change: str  # of the group, as a sentence
    ended_s: float  # by the monotonic clock
    memory: Sequence[Sequence[str]] = ()
    mirrors: Sequence[Sequence[str]] = ()


class KeeperLine:
    """The agent's end. `before` is None in the first agent.

    A note never blocks. If the keeper does not read, for example because it is stopped, only the newest note of each
    kind waits, so that the memory in use does not grow.
    """

    def __init__(self, descriptor: int, keeper: int, before: Predecessor | None) -> None:
        self.keeper, self.before = keeper, before
        self._descriptor = descriptor
        self._begun = b""  # the rest of a message of which a part is written
        self._waiting: dict[str, bytes] = {}  # the newest message of each kind
        self._has_warned = False
        os.set_blocking(descriptor, False)

    def note_state(self, state: AgentState) -> None:
        self._note("state", {"state": asdict(state)})

    def note_memory(self, own: Files, mirrors: Files) -> None:
        """Tell the files in memory that the next agent needs."""
        files = {"memory": [list(each) for each in own], "mirrors": [list(each) for each in mirrors]}
        self._note("memory", files)

    def finish(self, record: ExitRecord, verdict: str) -> None:
        """Send the result. Blocks until all of it is in the pipe."""
        self._note("result", {"result": render_exit_record(record), "verdict": verdict})
        while not self.flush():
            wait_writable(self._descriptor)

    def flush(self) -> bool:
        """Write what waits until the pipe is full. Returns whether all of it is written."""
        while self._begun or self._waiting:
            self._begun = self._begun or self._waiting.pop(next(iter(self._waiting)))
            try:
                self._begun = self._begun[os.write(self._descriptor, self._begun) :]
            except BlockingIOError:
                return False
        return True

    def close(self) -> None:
        """In a forked process."""
        os.close(self._descriptor)

    def _note(self, kind: str, message: Mapping[str, object]) -> None:
        # A signal can end a long write early. So each message begins a new line.
        self._waiting[kind] = b"\n" + json.dumps(message).encode() + b"\n"
        if not self.flush() and not self._has_warned:
            self._has_warned = True
            say("the keeper is stopped or slow: if this agent died now, the next one would not know its newest notes")


@dataclass
class Notes:
    """What an agent has told so far, as its keeper knows it."""

    state: AgentState = field(default_factory=AgentState)
    result: tuple[ExitRecord, str] | None = None
    files: tuple[Files, Files] | None = None  # news about the files in memory: own and mirrors
    _rest: bytes = b""

    def take(self, content: bytes) -> None:
        *lines, self._rest = (self._rest + content).split(b"\n")
        for line in filter(None, lines):
            try:
                self._take(json.loads(line))
            except (ValueError, KeyError, TypeError):
                continue  # torn

    def forget_rest(self) -> None:
        """Call this after the writer has ended, maybe within a line. Its files cannot be opened any more."""
        self._rest, self.files = b"", None

    def _take(self, message: Mapping[str, object]) -> None:
        if isinstance(state := message.get("state"), dict):
            self.state = AgentState(**state)
        elif isinstance(result := message.get("result"), dict):
            self.result = parse_exit_record(result), str(message["verdict"])
        elif isinstance(own := message.get("memory"), list) and isinstance(mirrors := message["mirrors"], list):
            self.files = own, mirrors


def render_predecessor(before: Predecessor | None) -> dict[str, object] | None:
    return None if before is None else asdict(before)


def parse_predecessor(document: object) -> Predecessor | None:
    if not isinstance(document, dict):
        return None
    return Predecessor(**{**document, "state": AgentState(**document["state"])})
