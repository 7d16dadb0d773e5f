"""One elastic job of the bundled trainer on the nodes of a network, and the steps that its workers report."""

from __future__ import annotations

import json
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from benchmarks.recovery.contestants import open_attempt
from benchmarks.recovery.steps import Follower, Step
from deploy.dev.network import Network
from deploy.dev.service import outer_environment
from trainer.contract import env, layout
from trainer.contract.exit_record import EventKind
from trainer.elastic.rendezvous.epochs import Epochs

_PATIENCE_S = 90.0
_PORT = 28777
_CONFIG = {
    "preset": "nano",
    "steps": 10**9,
    "global_batch": 6,
    "micro_batch": 1,
    "seq_len": 32,
    "snapshot_interval": 20,
}


class NoRecovery(Exception):
    """The group made no step in time. The text has the agents' output."""


@dataclass
class Fleet:
    """Call `end` to kill what still runs. With fewer than `min_nodes` nodes no group forms."""

    network: Network
    folder: Path
    min_nodes: int = 1
    config: dict[str, object] = field(default_factory=dict)  # beside the usual one
    followers: dict[Path, Follower] = field(default_factory=dict)
    agents: list[subprocess.Popen[bytes]] = field(default_factory=list)

    def __post_init__(self) -> None:
        open_attempt(self.folder)

    def form(self, *, steps: int) -> None:
        """Start all agents, and wait until each worker has made so many steps. Raises NoRecovery."""
        began_s = time.time()
        for node in range(self.network.count):
            self.start(node)
        self.until_world(self.network.count, after_s=began_s, steps=steps)

    def start(self, node: int) -> None:
        """Start the agent of a node, which joins or forms the group."""
        replica = layout.replica_dir(self.folder, 1, node)
        replica.mkdir(exist_ok=True)
        flags = [
            f"--nnodes={self.min_nodes}:{self.network.count}",
            "--nproc-per-node=1",
            "--rdzv-backend=c10d",
            "--rdzv-id=fleet",
        ]
        flags += [
            f"--rdzv-endpoint={self.network.address(0)}:{_PORT}",
            f"--rdzv-conf=is_host={int(node == 0)},read_timeout=20",
        ]
        flags += [f"--local-addr={self.network.address(node)}", "--monitor-interval=0.05"]
        program = ["-m", "trainer", "--config", json.dumps(_CONFIG | self.config)]
        command = [sys.executable, "-m", "trainer.elastic.elasticrun", *flags, *program]
        place = {env.JOB_ID: "fleet", env.JOB_DIR: str(self.folder), env.ATTEMPT: "1", env.REPLICA: str(node)}
        # The nodes share this machine's cores, on which threads that wait for each other are a hundred times slower.
        marks = {**place, env.CLAIM: "fleet", "GLOO_SOCKET_IFNAME": "eth0", "OMP_NUM_THREADS": "1"}
        with (replica / layout.AGENT_LOG).open("ab") as log:
            command = self.network.inside(node, command)
            self.agents.append(subprocess.Popen(command, env=outer_environment() | marks, stdout=log, stderr=log))

    def end(self) -> None:
        """Kill what still runs on every node, and repair the network."""
        for node in range(self.network.count):
            self.network.kill(node)
            self.network.repair(node)
        for agent in self.agents:
            agent.wait(300)

    def store_host(self) -> int | None:
        """The node whose agent serves the rendezvous store."""
        newest = Epochs(layout.attempt_dir(self.folder, 1)).newest()
        numbers = {self.network.address(node): node for node in range(self.network.count)}
        return None if newest is None else numbers.get(newest[1].address)

    def until_world(self, size: int, *, after_s: float, steps: int = 1) -> Step:
        """Wait until each worker of a group of `size` has made `steps` steps after `after_s`. Raises NoRecovery.

        Returns the first step that completes the group.
        """
        deadline = time.monotonic() + _PATIENCE_S
        seen: list[Step] = []
        while time.monotonic() < deadline:
            time.sleep(0.005)
            seen += [step for step in self.news() if step.at_s > after_s and step.world_size == size]
            ranks = {rank: [step for step in seen if step.rank == rank] for rank in range(size)}
            if all(len(reported) >= steps for reported in ranks.values()):
                return max((reported[0] for reported in ranks.values()), key=lambda step: step.at_s)
        raise NoRecovery(self.printed())

    def news(self) -> list[Step]:
        for path in layout.attempt_dir(self.folder, 1).glob(f"replica-*/*/{layout.PROGRESS}"):
            self.followers.setdefault(path, Follower(path))
        return [step for follower in self.followers.values() for step in follower.news()]

    def history(self) -> list[Step]:
        """Every step reported so far, in order of time."""
        paths = layout.attempt_dir(self.folder, 1).glob(f"replica-*/*/{layout.PROGRESS}")
        return sorted((step for path in paths for step in Follower(path).news()), key=lambda step: step.at_s)

    def events(self, kind: EventKind) -> list[dict[str, Any]]:
        """The evidence of the events of this kind, in order of time."""
        paths = layout.attempt_dir(self.folder, 1).glob(f"replica-*/*/{layout.EVENTS}")
        lines = [json.loads(line) for path in paths for line in path.read_text().splitlines()]
        found = [line for line in lines if line.get("kind") == kind.value]
        return [line["evidence"] for line in sorted(found, key=lambda line: line["at"])]

    def printed(self) -> str:
        """What the agents printed last, without torch's stack traces, and the last events and steps of each replica."""
        attempt = layout.attempt_dir(self.folder, 1)
        parts = []
        for log in sorted(attempt.glob(f"replica-*/{layout.AGENT_LOG}")):
            files = [*log.parent.glob(f"*/{layout.EVENTS}"), *log.parent.glob(f"*/{layout.PROGRESS}")]
            parts += [f"{log.parent.name}:", *_last_lines(log, 12)]
            parts += [line for file in files for line in _last_lines(file, 6)]
        return "\n".join(parts)


def _last_lines(file: Path, count: int) -> list[str]:
    lines = [line for line in file.read_text(errors="replace").splitlines() if line and not line.startswith("frame #")]
    return [line[:300] for line in lines[-count:]]


def run_often(nodes: int, times: int, act: Callable[[Fleet], None], *, title: str) -> list[list[Step]]:
    """Call `act` so many times on a group that trains. After a NoRecovery, which is printed, there is a new group.

    Returns the history of each group. Raises NoNamespaces, and NoRecovery if a group does not form.
    """
    done, histories = 0, list[list[Step]]()
    while done < times:
        with tempfile.TemporaryDirectory() as folder, Network(nodes) as network:
            fleet = Fleet(network, Path(folder).resolve())
            try:
                fleet.form(steps=20)
                done += _act_until_lost(fleet, times - done, act, title)
            finally:
                fleet.end()
                histories.append(fleet.history())
    return histories


def _act_until_lost(fleet: Fleet, times: int, act: Callable[[Fleet], None], title: str) -> int:
    """Return how often `act` was called. The last call may have failed."""
    for done in range(1, times + 1):
        try:
            act(fleet)
        except NoRecovery as error:
            print(f"{fleet.network.count} nodes, {title}: no recovery: {error}", file=sys.stderr, flush=True)
            return done
    return times


def find_split(steps: list[Step]) -> str | None:
    """A sentence about a step of an older generation after the first step of a newer one, or about a generation that
    two groups share. None if there is neither.

    All ranks of a generation contribute to each of its steps. So a rank whose packets are late may still complete the
    step that was under way when the others left the generation, but no further one.
    """
    newest: Step | None = None
    ranks: dict[int, int] = {}  # the processes of the newest generation
    highest: dict[int, int] = {}  # the last step of each generation
    began_s = 0.0  # when the newest generation made its first step
    for step in steps:
        if newest is not None and step.generation < newest.generation:
            if step.number <= highest.get(step.generation, -1) + 1:
                continue
            last = highest.get(step.generation, "none")
            return (
                f"rank {step.rank} of generation {step.generation} made step {step.number} {step.at_s - began_s:.2f} s "
                f"after generation {newest.generation} had begun; its newest step was {last}"
            )
        if newest is None or step.generation > newest.generation:
            newest, ranks, began_s = step, {}, step.at_s
        highest[step.generation] = max(step.number, highest.get(step.generation, 0))
        if ranks.setdefault(step.rank, step.pid) != step.pid or step.world_size != newest.world_size:
            return f"two groups made step {step.number} in generation {step.generation}"
    return None
