"""Real agents with the real rendezvous, on a virtual clock, with stores in memory and fake workers.

Agents can be paused, cut off from each other, and killed with their nodes. Packets of a node can be lost for a while.
"""

from __future__ import annotations

import itertools
import subprocess
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any
from unittest.mock import patch
from weakref import WeakValueDictionary

from tests.elastic.virtual import Clock, Pause
from trainer.contract import env, layout
from trainer.contract.failure import Failure
from trainer.elastic import agent
from trainer.elastic.agent import Agent
from trainer.elastic.flags import parse_flags
from trainer.elastic.health import awake
from trainer.elastic.memory_files import MemoryFiles
from trainer.elastic.records import history
from trainer.elastic.rendezvous import backoff as waits
from trainer.elastic.rendezvous import join as rendezvous
from trainer.elastic.rendezvous import observer, store_thread, succession
from trainer.elastic.rendezvous.endpoint import Answer
from trainer.elastic.rendezvous.epochs import Served
from trainer.elastic.rendezvous.failed import RendezvousFailed
from trainer.elastic.rendezvous.join import Rendezvous, SingleNodeRendezvous, StoreRendezvous
from trainer.elastic.rendezvous.link import Quality, Silence
from trainer.elastic.rendezvous.link_messages import Verdict
from trainer.elastic.rendezvous.observer import Observer
from trainer.elastic.rendezvous.options import Timing
from trainer.elastic.rendezvous.round_document import Limits, Member
from trainer.elastic.rendezvous.succession import Endpoint, Succession
from trainer.elastic.workers import ending
from trainer.elastic.workers.workers import Membership, WorkersStoreHost

LOOK_S = 0.5  # of agents and rendezvous, longer than the default because each look costs real time
_ANSWER_S = 0.002  # of the store
_SUSPICIOUS_S, _REFUSED_S, _PROBE_S = 2.0, 0.4, 1.0  # of heartbeats
_TCP_GIVES_UP_S = 30.0  # on a silent node
_LOOK_AGAIN_S = 0.05
_CONNECTED_WITHIN_S = 2.0
_FOLDER_S = 0.02  # a claim in a shared folder
_STEP_S, _STALL_S = 0.5, 2.0
_POOR_AFTER_S, _GOOD_AFTER_S = 0.6, 10.0  # a link whose packets are lost
_FIRST_PID = 2**22 + 1  # above the highest pid of a process (proc(5))
_LOST_PEER = """\
Traceback (most recent call last):
RuntimeError: [gloo/transport/tcp/pair.cc:553] Connection closed by peer [10.0.0.1]:2000
"""


@dataclass(frozen=True, kw_only=True)
class Stop:
    """One pause of a node's agent, with or without its workers."""

    node: int
    begin_s: float
    length_s: float
    with_workers: bool


@dataclass(frozen=True, kw_only=True)
class Cut:
    """Nodes that cannot reach the others for a while. Their folders are still shared."""

    nodes: frozenset[str]
    begin_s: float
    length_s: float


@dataclass(frozen=True, kw_only=True)
class Death:
    """All processes of a node end. `silently`: nobody answers there any more, as after a power failure."""

    node: str
    at_s: float
    silently: bool


@dataclass(frozen=True, kw_only=True)
class Loss:
    """Too many packets to and from a node are lost for a group to make steps with it. Agents still reach each other."""

    node: str
    begin_s: float
    length_s: float


@dataclass(frozen=True)
class Step:
    """A step of a whole group."""

    at_s: float
    generation: int
    nodes: frozenset[str]


@dataclass(eq=False)
class Worker:
    """A worker, with the interface of ForkedProcess."""

    pid: int
    node: str
    generation: int
    world_size: int
    folder: Path
    returncode: int | None = None
    because: str = ""
    number: int = 0
    was_spare: bool = False

    def poll(self) -> int | None:
        return self.returncode

    def wait(self, timeout: float | None = None) -> int:
        if self.returncode is None:
            raise subprocess.TimeoutExpired("worker", timeout or 0.0)
        return self.returncode

    def send_signal(self, number: int) -> None:
        self.end(-number)

    def end(self, code: int) -> None:
        if self.returncode is None:
            self.returncode = code


@dataclass
class Nodes:
    """`count` nodes with one worker each, in a group of at least `least`.

    `breaks`: a worker that loses a peer ends, as with gloo; otherwise it waits forever, as with NCCL. `crashes`: every
    worker fails before its first step.
    """

    count: int
    least: int
    stops: Sequence[Stop] = ()
    breaks: bool = True
    crashes: bool = False
    max_restarts: int = 0
    finish_at_s: float = float("inf")  # after which the workers end with success
    cuts: Sequence[Cut] = ()
    deaths: Sequence[Death] = ()
    losses: Sequence[Loss] = ()
    has_epochs: bool = True  # the nodes share the attempt's folder
    steps: list[Step] = field(default_factory=list)
    failures: dict[str, Failure | None] = field(default_factory=dict)  # of agents that have ended
    # Since when an agent sends another one no heartbeats, by the names of the receiver and the sender.
    unfollowed_s: dict[tuple[str, str], float] = field(default_factory=dict)
    ended_s: dict[str, float] = field(default_factory=dict)  # of agents
    agents: dict[str, Agent] = field(default_factory=dict)
    rendezvous: dict[str, Rendezvous] = field(default_factory=dict)
    workers: list[Worker] = field(default_factory=list)
    formed: list[tuple[float, int]] = field(default_factory=list)  # when each generation first started

    def __post_init__(self) -> None:
        pauses = [self._pause(stop, f"node-{stop.node}") for stop in self.stops]
        self.clock = Clock([*pauses, *(Pause(each.node, 1000.0 + each.at_s, float("inf")) for each in self.deaths)])
        # Workers are not threads of the clock. This clock only knows when they are paused.
        self._of_workers = Clock([self._pause(each, f"node-{each.node}") for each in self.stops if each.with_workers])
        self.network = Network(self.clock, lambda node: node in self.failures or self.is_dead(node), self.cuts)
        self.network.generation = lambda: self.generation
        self.network.silent = lambda node: any(each.silently for each in self._deaths_of(node))
        self._pids = itertools.count(_FIRST_PID)

    @property
    def generation(self) -> int:
        return max((generation for _, generation in self.formed), default=0)

    @property
    def survived(self) -> int:
        """The failures that were charged to agents."""
        return sum(each.history.failures_survived for each in self.agents.values())

    def run(self, seconds: float) -> None:
        with _virtual(self.clock, self.network):
            for number in range(self.count):
                self.clock.spawn(f"node-{number}", self._agent(f"node-{number}", number))
            self.clock.spawn("training", self._train)
            try:
                self.clock.run(self.clock.now_s + seconds)
            finally:
                self.clock.end()

    def is_dead(self, node: str) -> bool:
        return bool(self._deaths_of(node))

    def _deaths_of(self, node: str) -> list[Death]:
        """The deaths of the node until now."""
        return [each for each in self.deaths if each.node == node and 1000.0 + each.at_s <= self.clock.now_s]

    def _pause(self, stop: Stop, node: str) -> Pause:
        begin_s = 1000.0 + stop.begin_s
        return Pause(node, begin_s, begin_s + stop.length_s)

    def _agent(self, node: str, node_rank: int) -> Callable[[], None]:
        def live() -> None:
            place = ["--rdzv-backend=c10d", "--rdzv-endpoint=10.0.0.1:1", f"--monitor-interval={LOOK_S}"]
            ends = [f"--max-restarts={self.max_restarts}", "--shutdown-timeout=1"]
            flags = parse_flags([f"--nnodes={self.least}:{self.count}", *place, *ends, "script.py"])
            me = Member(node=node, node_rank=node_rank, address=node, workers=1)
            rendezvous = self.rendezvous[node] = self._rendezvous(me, flags.limits)
            mine = self.agents[node] = Agent(
                flags,
                workers=1,
                fork_server=FakeForkServer(self, node),
                membership=Membership(
                    node=node,
                    rendezvous=rendezvous,
                    store_host=WorkersStoreHost("127.0.0.1", 1),
                    memory=MemoryFiles(1),
                ),
                record=None,
            )
            failure: Failure | None = None
            try:
                mine.run()
                failure = None if mine.succeeded else mine.history.failure
            except RendezvousFailed as error:
                failure = None if mine.succeeded else error.failure
            rendezvous.leave(None if failure is None else failure.message)
            self.failures[node] = failure
            self.ended_s[node] = self.clock.now_s

        return live

    def _rendezvous(self, me: Member, limits: Limits) -> Rendezvous:
        if self.count == 1:
            return SingleNodeRendezvous(me)
        me = replace(me, beats_port=1)
        first = Endpoint(host="10.0.0.1", port=1, serves=me.node == "node-0")
        epochs: Any = self.network if self.has_epochs else None
        timing = Timing(read_s=600.0)  # the first agent may be paused before it serves its store
        observes = Observer(VirtualLinks(self, me.node), me.node, timing, limits)
        return StoreRendezvous(Succession(first, "run", me, timing, observes, epochs), me, limits)

    def _train(self) -> None:
        while True:
            self.clock.sleep(_STEP_S)
            self._of_workers.now_s = self.clock.now_s
            for worker in self.workers:
                if self.is_dead(worker.node):
                    worker.end(-9)
            for generation in sorted({worker.generation for worker in self.workers}):
                self._step([worker for worker in self.workers if worker.generation == generation])
            self._note_stalls()

    def _note_stalls(self) -> None:
        stepped_s = {step.generation: step.at_s for step in self.steps}
        for worker in self.workers:
            if worker.returncode is None and worker.generation in stepped_s:
                is_stalled = self.clock.now_s - stepped_s[worker.generation] > _STALL_S
                self.rendezvous[worker.node].note_stall(is_stalled)

    def lossy_s(self, *nodes: str) -> float:
        """For how long packets of one of these nodes are being lost, or minus for how long none is any more."""
        now_s, found = self.clock.now_s - 1000.0, [float("-inf")]
        for loss in self.losses:
            if loss.node in nodes and loss.begin_s <= now_s:
                since_end_s = now_s - loss.begin_s - loss.length_s
                found.append(now_s - loss.begin_s if since_end_s < 0 else -since_end_s)
        return max(found)

    def _step(self, group: Sequence[Worker]) -> None:
        running = [worker for worker in group if worker.returncode is None]
        awake = [worker for worker in running if not self._of_workers.is_paused(worker.node)]
        if self.crashes:
            for worker in awake:
                worker.end(1)
        elif len(group) == group[0].world_size and awake == list(group) and self._are_connected(group):
            nodes = frozenset(worker.node for worker in group)
            self.steps.append(Step(self.clock.now_s, group[0].generation, nodes))
            if self.clock.now_s - 1000.0 > self.finish_at_s:
                for worker in group:
                    worker.end(0)
        elif self.breaks and any(worker.returncode not in (None, 0) for worker in group):
            for worker in awake if self._are_connected(group) else ():
                (worker.folder / layout.WORKER_LOG).write_text(_LOST_PEER)
                worker.end(1)

    def _are_connected(self, group: Sequence[Worker]) -> bool:
        is_lossy = len(group) > 1 and self.lossy_s(*(worker.node for worker in group)) > 0
        return not (is_lossy or any(self.network.is_cut(worker.node, group[0].node) for worker in group))

    def start(self, node: str, environ: Mapping[str, str]) -> Worker:
        generation = int(environ[env.GENERATION])
        folder = Path(environ["TORCHELASTIC_ERROR_FILE"]).parent
        worker = Worker(next(self._pids), node, generation, int(environ["WORLD_SIZE"]), folder)
        if generation not in {known for _, known in self.formed}:
            self.formed.append((self.clock.now_s, generation))
        self.workers.append(worker)
        return worker


class FakeForkServer:
    """The fork server of one agent. It starts fake workers."""

    server_pid = None
    imported_s, rss_bytes, spare_bytes, spares_ended = 0.0, 0, 0, 0

    def __init__(self, nodes: Nodes, node: str) -> None:
        self._nodes, self._node = nodes, node

    def start(self, command: Sequence[str], environ: Mapping[str, str], **_: object) -> Worker:
        return self._nodes.start(self._node, environ)

    def listen(self, timeout_s: float) -> None:
        self._nodes.clock.sleep(timeout_s)


class Network:
    """The stores of all agents, how each node reaches them, and the epochs in the shared folder."""

    def __init__(self, clock: Clock, has_ended: Callable[[str], bool], cuts: Sequence[Cut]) -> None:
        self.clock, self._has_ended, self._cuts = clock, has_ended, cuts
        self.silent: Callable[[str], bool] = lambda node: False  # a node that has ended does not even refuse
        self.generation: Callable[[], int] = lambda: 0  # the newest that has begun
        # By port. A store ends with the last reference to it, as a TCPStore does. Its clients hold none.
        self._stores: WeakValueDictionary[int, Store] = WeakValueDictionary()
        self._ports = itertools.count(1000)
        self._hung_up: set[tuple[str, int]] = set()
        self._epochs: list[Served] = []
        self._finished: set[tuple[int, str]] = set()

    def serve(self, served: Served, timing: Timing, *, is_required: bool) -> Store:
        port = served.port or next(self._ports)
        store = self._stores[port] = Store(self, self.clock.node, port)
        return store

    def connect(self, served: Served, timing: Timing, key: str) -> Client | None:
        if self.probe(served) is not Answer.YES:
            return None
        store = Client(self, served.port)
        if self.clock.is_paused(self.find_store(served.port).host):  # its kernel accepts the connection
            self.clock.sleep(_CONNECTED_WITHIN_S)
            return None
        self._hung_up.discard((self.clock.node, served.port))
        with suppress(RuntimeError):
            return store if store.check([key]) else None
        return None

    def find_store(self, port: int) -> Store:
        """Raises RuntimeError if it has ended."""
        store = self._stores.get(port)
        if store is None:
            raise RuntimeError("Connection reset by peer")
        return store

    def probe(self, served: Served) -> Answer:
        self.clock.sleep(_ANSWER_S)
        store = self._stores.get(served.port)
        if store is None:
            return Answer.REFUSED
        if self.is_cut(store.host) or self.silent(store.host):
            self.clock.sleep(1.0)
            return Answer.SILENT
        return Answer.REFUSED if self._has_ended(store.host) else Answer.YES

    def hang_up(self, served: Served) -> None:
        self._hung_up.add((self.clock.node, served.port))

    def refuses(self, node: str) -> bool:
        """Whether the node's kernel says that its agent has ended."""
        return self._has_ended(node) and not self.silent(node)

    def is_cut(self, host: str, node: str | None = None) -> bool:
        """Whether the calling node cannot reach the host now."""
        one = node or self.clock.node
        return any(
            (one in cut.nodes) != (host in cut.nodes) and 0 <= self.clock.now_s - 1000.0 - cut.begin_s < cut.length_s
            for cut in self._cuts
        )

    def await_answer(self, host: str, port: int) -> None:
        """Raises RuntimeError if the host is gone, after a long cut, and if this node has hung up."""
        me, until_s = self.clock.node, self.clock.now_s + _TCP_GIVES_UP_S
        self.clock.sleep(_ANSWER_S)
        while (is_silent := self.is_cut(host) or self.silent(host)) or self.clock.is_paused(host):
            is_over = self.clock.now_s > until_s if is_silent else self._has_ended(host)
            if is_over or (me, port) in self._hung_up:
                break
            self.clock.sleep(_LOOK_AGAIN_S)
        if (me, port) in self._hung_up or is_silent or self._has_ended(host):
            raise RuntimeError("Connection reset by peer")

    # The interface of Epochs.

    def newest_generation(self) -> int:
        return self.generation()

    def newest(self) -> tuple[int, Served] | None:
        return (len(self._epochs), self._epochs[-1]) if self._epochs else None

    def claim(self, served: Served, above: int, holder: Served | None = None) -> int | None:
        self.clock.sleep(_FOLDER_S)
        if len(self._epochs) > above and self._epochs[-1] != holder:
            return None
        self._epochs.append(served)
        return len(self._epochs)

    def note_finished(self, generation: int, node: str) -> None:
        self.clock.sleep(_FOLDER_S)
        self._finished.add((generation, node))

    def finished_in(self, generation: int) -> frozenset[str]:
        return frozenset(node for each, node in self._finished if each == generation)


class VirtualLinks:
    """Heartbeats that arrive at once, unless a node is paused, dead or cut off."""

    def __init__(self, nodes: Nodes, node: str) -> None:
        self._nodes, self._node = nodes, node
        self._heard: set[str] = set()
        self._follows: dict[str, tuple[str, int]] = {}
        self._asked: dict[str, tuple[float, Collection[str]]] = {}
        self._answers: dict[str, Mapping[str, Verdict]] = {}

    def follow(self, peers: Mapping[str, tuple[str, int]]) -> None:
        """Agents send heartbeats only to those that they follow."""
        now_s = self._nodes.clock.now_s
        for node in self._follows.keys() - peers.keys():
            self._nodes.unfollowed_s[node, self._node] = now_s
        for node in peers:
            self._nodes.unfollowed_s.pop((node, self._node), None)
        self._follows = dict(peers)
        self._heard |= {node for node in peers if not self._silent_s(self._node, node)}

    def silence(self, node: str) -> Silence:
        silent_s = self._silent_s(self._node, node)
        is_gone = self._nodes.network.refuses(node) and not self._nodes.network.is_cut(node, self._node)
        return Silence(
            heard=node in self._heard,
            silent_s=silent_s,
            suspected=silent_s > _SUSPICIOUS_S,
            refused=is_gone and silent_s > _REFUSED_S and node in self._heard,
        )

    def quality(self, node: str) -> Quality:
        lossy_s = self._nodes.lossy_s(self._node, node)
        if lossy_s > _POOR_AFTER_S:
            return Quality.POOR
        return Quality.GOOD if lossy_s < -_GOOD_AFTER_S else Quality.FAIR

    def ask(self, about: str, whom: Collection[str]) -> None:
        self._asked[about] = self._nodes.clock.now_s, whom
        self._answers.pop(about, None)

    def answers(self, about: str) -> Mapping[str, Verdict]:
        """As of the end of the probes: later answers do not come. Who loses heartbeats answers at once."""
        asked_s, whom = self._asked.get(about, (float("inf"), ()))
        badly = {node: Verdict.HEARD_BADLY for node in whom if self._nodes.lossy_s(node, about) > _POOR_AFTER_S}
        if badly:
            return badly
        if self._nodes.clock.now_s >= asked_s + _PROBE_S and about not in self._answers:
            self._answers[about] = {
                node: Verdict.HEARD if self._silent_s(node, about) < _PROBE_S else Verdict.NOT_HEARD
                for node in whom
                if not self._silent_s(self._node, node)
            }
        return self._answers.get(about, {})

    def close(self) -> None:
        return

    def _silent_s(self, one: str, other: str) -> float:
        """How long `one` has heard nothing of `other`, without its own pauses."""
        now_s, nodes = self._nodes.clock.now_s, self._nodes
        begun = [cut.begin_s + 1000.0 for cut in nodes.cuts if (one in cut.nodes) != (other in cut.nodes)]
        begun = [begin_s for begin_s in begun if nodes.network.is_cut(other, one)]
        begun += [nodes.ended_s[other]] if other in nodes.ended_s else []
        begun += nodes.clock.pauses_begun(other)
        if (one, other) in nodes.unfollowed_s:
            begun.append(nodes.unfollowed_s[one, other])
        awake_s = max([0.0, *nodes.clock.pauses_ended(one)])
        return max(0.0, now_s - max(awake_s, min(begun))) if begun else 0.0


class Store:
    """A TCPStore in one node's agent. It does not answer while that is paused, and is lost once that has ended."""

    def __init__(self, network: Network, host: str, port: int) -> None:
        self.network, self.host, self.port = network, host, port
        self._values: dict[str, bytes] = {}

    def _await_answer(self) -> None:
        self.network.await_answer(self.host, self.port)

    def add(self, key: str, amount: int) -> int:
        self._await_answer()
        count = int(self._values.get(key, b"0")) + amount
        self._values[key] = str(count).encode()
        return count

    def check(self, keys: Sequence[str]) -> bool:
        self._await_answer()
        return all(key in self._values for key in keys)

    def set(self, key: str, value: str) -> None:
        self._await_answer()
        self._values[key] = value.encode()

    def get(self, key: str) -> bytes:
        self._await_answer()
        return self._values[key]

    def multi_get(self, keys: Sequence[str]) -> list[bytes]:
        self._await_answer()
        return [self._values[key] for key in keys]

    def compare_set(self, key: str, expected: str, desired: str) -> bytes:
        self._await_answer()
        found = self._values.get(key, b"").decode()
        if found == expected:
            self._values[key] = desired.encode()
        return self._values[key]


class Client:
    """A connection to a store. Its calls raise RuntimeError once the store has ended."""

    def __init__(self, network: Network, port: int) -> None:
        self._network, self._port = network, port

    def __getattr__(self, name: str) -> Any:
        return getattr(self._network.find_store(self._port), name)


@contextmanager
def _virtual(clock: Clock, network: Network) -> Iterator[None]:
    timed = (agent, awake, ending, history, observer, rendezvous, store_thread, succession, waits)
    replaced: list[tuple[Any, str, object]] = [(each, "time", clock.time) for each in timed]
    replaced += [(succession, name, getattr(network, name)) for name in ("serve", "connect", "probe", "hang_up")]
    replaced += [(store_thread, "queue", clock.queue), (store_thread, "threading", clock.threading)]
    replaced += [(store_thread, "Future", clock.future), (store_thread, "_LOOK_EVERY_S", LOOK_S)]
    with ExitStack() as stack:
        for module, name, replacement in replaced:
            stack.enter_context(patch.object(module, name, replacement))
        yield
