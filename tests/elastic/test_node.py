"""The task that starts an agent on each Slurm node: command, addresses, signals, and the departure file."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from tests.elastic.harness import alive, wait_for
from trainer.contract import layout
from trainer.contract.node import HEAD, LOCAL, NodeLaunch, departure_name, parse_departure, render_node_launch
from trainer.elastic.node import find_interface, find_local_address
from trainer.elastic.records.files import write_document

DUMP = "import json, os, sys; open('dump', 'w').write(json.dumps([sys.argv[1:], dict(os.environ)]))"


class Node:
    """A task of a Slurm step, in an attempt's folder."""

    def __init__(self, folder: Path) -> None:
        self.attempt_dir = folder / "job" / "attempts" / "1"
        self.attempt_dir.mkdir(parents=True)
        self.workdir = folder / "work"
        self.workdir.mkdir()

    def start(self, code: str, *, replica: int = 1, **environment: str) -> subprocess.Popen[bytes]:
        command = (sys.executable, "-c", code, f"--rdzv-endpoint={HEAD}:20000", f"--local-addr={LOCAL}", "mine", HEAD)
        launch = NodeLaunch(command=command, environment=environment, workdir=str(self.workdir))
        write_document(self.attempt_dir / layout.NODE_LAUNCH, render_node_launch(launch))
        place = {"SLURM_PROCID": str(replica), "SLURMD_NODENAME": "n7", "SLURM_JOB_ID": "12"}
        given = {**os.environ, **place, "SLURM_CLUSTER_NAME": "lab", "ORCHESTRATOR_HEAD": "127.0.0.1"}
        command_line = [sys.executable, "-m", "trainer.elastic.node", str(self.attempt_dir)]
        return subprocess.Popen(command_line, env=given, stderr=subprocess.DEVNULL)

    def start_app(self, code: str, *, replica: str = "1", of: int = 2, **variables: str) -> subprocess.Popen[bytes]:
        """Start it as an app of a torchx scheduler, which names the first node in a variable."""
        command = (sys.executable, "-c", code, f"--rdzv-endpoint={HEAD}:20000", f"--local-addr={LOCAL}")
        write_document(
            self.attempt_dir / layout.NODE_LAUNCH,
            render_node_launch(NodeLaunch(command=command, environment={}, workdir=str(self.workdir))),
        )
        arguments = ["--replica", replica, "--of", str(of), "--claim", "torchx-1", "--first-in", "FIRST"]
        command_line = [sys.executable, "-m", "trainer.elastic.node", str(self.attempt_dir), *arguments]
        return subprocess.Popen(command_line, env={**os.environ, **variables}, stderr=subprocess.DEVNULL)

    def log(self, replica: int = 1) -> str:
        return (self.attempt_dir / f"replica-{replica}" / layout.AGENT_LOG).read_text()

    def dump(self) -> tuple[list[str], dict[str, str]]:
        """The agent's arguments and environment."""
        arguments, environment = json.loads((self.workdir / "dump").read_text())
        return arguments, environment

    def await_start(self) -> int:
        """The agent's pid, once it has written it."""
        up = self.workdir / "up"
        wait_for(lambda: up.exists() and up.read_text(), "start of the agent")
        return int(up.read_text())

    def departure(self, replica: int = 1) -> object:
        path = self.attempt_dir / departure_name(replica)
        return parse_departure(json.loads(path.read_text())) if path.exists() else None


@pytest.fixture
def node(tmp_path: Path) -> Node:
    return Node(tmp_path)


def test_an_agent_gets_its_replica_its_claim_and_the_addresses(node: Node) -> None:
    assert node.start(DUMP, KEY="secret", PYTHONPATH="/users/own").wait(300) == 0
    arguments, environment = node.dump()
    assert arguments == ["--rdzv-endpoint=127.0.0.1:20000", "--local-addr=127.0.0.1", "mine", HEAD]
    assert environment["ORCHESTRATOR_REPLICA"] == "1"
    assert environment["ORCHESTRATOR_CLAIM"] == "slurm-lab-12"
    assert environment["KEY"] == "secret"
    package, own = environment["PYTHONPATH"].split(":")
    assert (Path(package, "trainer", "elastic", "node.py").exists(), own) == (True, "/users/own")
    found = node.departure()
    assert (found.node, found.exit_code, found.recorded, found.claim) == ("n7", 0, False, "slurm-lab-12")  # type: ignore[attr-defined]


def test_a_killed_agent_has_a_departure(node: Node) -> None:
    assert node.start("import os; os.kill(os.getpid(), 9)").wait(300) == 137
    assert node.departure().exit_code == -9  # type: ignore[attr-defined]


def test_an_agent_whose_claim_is_refused_has_no_departure(node: Node) -> None:
    assert node.start("raise SystemExit(3)").wait(300) == 3
    assert node.departure() is None


UP = "import os, signal, sys, time; {}; open('up', 'w').write(str(os.getpid())); time.sleep(60)"


def test_signals_are_forwarded(node: Node) -> None:
    task = node.start(UP.format("signal.signal(signal.SIGTERM, lambda *_: sys.exit(7))"))
    node.await_start()
    task.send_signal(signal.SIGTERM)
    assert task.wait(300) == 7
    assert node.departure().exit_code == 7  # type: ignore[attr-defined]


def test_the_agent_dies_with_its_task(node: Node) -> None:
    task = node.start(UP.format("pass"))
    pid = node.await_start()
    task.kill()
    task.wait()
    wait_for(lambda: not alive(pid), "end of the agent")


def test_local_addresses_and_interfaces_are_found() -> None:
    assert find_local_address("127.0.0.1") == "127.0.0.1"
    assert find_local_address("no such host, surely.invalid") is None
    assert find_interface("127.0.0.1") == "lo"
    assert find_interface("192.0.2.1") is None


def test_an_app_of_a_torchx_scheduler_gets_its_replica_its_claim_and_the_first_node(node: Node) -> None:
    assert node.start_app(DUMP, replica="$INDEX", INDEX="1", FIRST="localhost").wait(300) == 0
    arguments, environment = node.dump()
    assert arguments[0] == "--rdzv-endpoint=127.0.0.1:20000"
    assert (environment["ORCHESTRATOR_REPLICA"], environment["ORCHESTRATOR_CLAIM"]) == ("1", "torchx-1")
    assert (node.attempt_dir / "alive-1").exists()
    assert node.departure().claim == "torchx-1"  # type: ignore[attr-defined]


def test_only_the_first_node_of_an_app_may_find_no_first_node(node: Node) -> None:
    """AWS Batch names it on all other nodes."""
    assert node.start_app(DUMP, replica="0").wait(300) == 0
    assert not node.dump()[0][0].startswith("--rdzv-endpoint={")
    assert node.start_app(DUMP, replica="1").wait(300) == 2
    assert "the scheduler names no first node: the variable FIRST is not set" in node.log()


def test_an_app_that_its_scheduler_starts_again_ends(node: Node) -> None:
    assert node.start_app("raise SystemExit(7)", FIRST="localhost").wait(300) == 7
    assert node.start_app(DUMP, FIRST="localhost").wait(300) == 3
    assert "has started this app again" in node.log()
    assert not (node.workdir / "dump").exists()
