"""Typical scripts outside a job, under elasticrun, and under torchrun where torchrun can run them."""

from __future__ import annotations

import os
import signal
import subprocess
from collections.abc import Sequence
from pathlib import Path

import pytest

from tests.elastic.harness import ELASTICRUN, ROOT, TORCHRUN, TWO, free_port
from tests.elastic.scripts_table import IGNORES_LOCAL_RANK, REDUCE, SCRIPTS, Script

_LIMIT_S = 120


def launch(launcher: Sequence[str], script: Script, folder: Path) -> subprocess.CompletedProcess[str]:
    script.write(folder)
    return subprocess.run(
        [*launcher, *script.launch_arguments()],
        cwd=folder,
        env={**os.environ, "PYTHONPATH": str(ROOT), **script.env},
        input=script.stdin,
        capture_output=True,
        text=True,
        timeout=_LIMIT_S,
        check=False,
    )


def lines_of(printed: str) -> list[str]:
    """The script's lines, without those of gloo in torch 2.8: `[Gloo] Rank 0 is connected to 1 peer ranks`."""
    return [line for line in printed.splitlines() if "[Gloo] Rank" not in line and "peer ranks" not in line]


OFTEN = ("plain", "a shell wrapper")


@pytest.mark.parametrize(
    "name",
    [
        pytest.param(name, marks=() if name in OFTEN else pytest.mark.long)
        for name, script in SCRIPTS.items()
        if not script.not_elasticrun
    ],
)
def test_a_script_runs_under_elasticrun(name: str, tmp_path: Path) -> None:
    done = launch(ELASTICRUN, SCRIPTS[name], tmp_path)
    assert (done.returncode, sorted(lines_of(done.stdout))) == (SCRIPTS[name].code, SCRIPTS[name].prints), done.stderr


@pytest.mark.long
@pytest.mark.parametrize("name", [name for name, script in SCRIPTS.items() if not script.not_torchrun])
def test_a_script_runs_under_torchrun(name: str, tmp_path: Path) -> None:
    done = launch(TORCHRUN, SCRIPTS[name], tmp_path)
    assert (done.returncode, sorted(lines_of(done.stdout))) == (SCRIPTS[name].code, SCRIPTS[name].prints), done.stderr


@pytest.mark.long
def test_a_script_that_ignores_its_local_rank_gets_advice_once(tmp_path: Path) -> None:
    done = launch(ELASTICRUN, Script(source=IGNORES_LOCAL_RANK, prints=[]), tmp_path)
    assert done.stderr.count("--pass-local-rank") == 1


_OWN_ADDRESS = """\
import os, torch.distributed as dist
os.environ["MASTER_PORT"] = str(int(os.environ["MASTER_PORT"]) + 1)
dist.init_process_group("gloo")
"""


@pytest.mark.long
def test_a_script_whose_workers_meet_at_an_address_without_a_store_gets_advice(tmp_path: Path) -> None:
    script = tmp_path / "script.py"
    script.write_text(_OWN_ADDRESS)
    node = start([TWO], script)
    try:
        assert node.stderr is not None
        assert "do not set MASTER_ADDR and MASTER_PORT" in node.stderr.readline()
        node.send_signal(signal.SIGTERM)
        assert node.wait(_LIMIT_S) == 143
    finally:
        node.kill()
        node.communicate()


def static(rank: int, port: int) -> list[str]:
    return ["--nnodes=2", f"--node-rank={rank}", "--master-addr=127.0.0.1", f"--master-port={port}"]


def start(flags: Sequence[str], script: Path) -> subprocess.Popen[str]:
    environ = {**os.environ, "PYTHONPATH": str(ROOT)}
    command = [*ELASTICRUN, *flags, str(script)]
    return subprocess.Popen(command, env=environ, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)


@pytest.mark.long
def test_two_nodes_meet_at_a_master_address(tmp_path: Path) -> None:
    script, port = tmp_path / "reduce.py", free_port()
    script.write_text(REDUCE + "reduce()\n")
    nodes = [start([*static(rank, port), TWO], script) for rank in (1, 0)]
    try:
        printed = [node.communicate(timeout=_LIMIT_S) for node in nodes]
        assert [node.returncode for node in nodes] == [0, 0], printed
        assert [lines_of(out) for out, _ in printed] == [["sum 4"] * 2] * 2
    finally:
        for node in nodes:
            node.kill()


@pytest.mark.parametrize(
    ("rank", "number"),
    [
        (0, signal.SIGTERM),
        pytest.param(1, signal.SIGTERM, marks=pytest.mark.long),
        pytest.param(0, signal.SIGINT, marks=pytest.mark.long),
    ],
)
def test_a_signal_ends_a_node_that_waits_for_its_peer(rank: int, number: signal.Signals, tmp_path: Path) -> None:
    script = tmp_path / "reduce.py"
    script.write_text(REDUCE + "reduce()\n")
    node = start(static(rank, free_port()), script)
    try:
        assert node.stderr is not None
        assert "waiting for" in node.stderr.readline()
        node.send_signal(number)
        assert node.wait(300) == 143
        assert f"stopped by {number.name}" in node.stderr.read()
    finally:
        node.kill()
        node.communicate()
