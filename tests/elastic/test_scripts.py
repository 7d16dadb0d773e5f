"""Scripts as people have them, by hand under elasticrun, and beside it under torchrun where torchrun can run them.

Each is complete, and none was written for elasticrun. A line that it prints says what came of it.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import pytest

from tests.elastic.harness import ELASTICRUN, ROOT, free_port

TORCHRUN = (sys.executable, "-m", "torch.distributed.run")
_LIMIT_S = 120

_REDUCE = """\
import os, sys, torch, torch.distributed as dist

def reduce(rank=None, size=None):
    places = {} if rank is None else {"rank": rank, "world_size": size}
    dist.init_process_group("gloo", **places)
    total = torch.ones(1)
    dist.all_reduce(total)
    os.write(1, f"sum {int(total)}\\n".encode())
    dist.destroy_process_group()
"""


@dataclass(frozen=True)
class Script:
    """`prints`: the lines of all workers, sorted. `torchrun`: why torchrun cannot run it, empty where it can."""

    source: str
    prints: Sequence[str]
    flags: Sequence[str] = ("--nproc-per-node=2",)
    arguments: Sequence[str] = ()
    code: int = 0
    torchrun: str = ""
    name: str = "script.py"
    stdin: str = ""


SCRIPTS = {
    "plain": Script(_REDUCE + "reduce()\n", ["sum 2", "sum 2"]),
    "mp.spawn with a port of its own": Script(
        _REDUCE + "import torch.multiprocessing as mp\n"
        "def work(rank, size):\n"
        "    os.environ.update(MASTER_ADDR='127.0.0.1', MASTER_PORT=sys.argv[1])\n"
        "    reduce(rank, size)\n"
        "if __name__ == '__main__':\n"
        "    mp.spawn(work, args=(2,), nprocs=2)\n",
        ["sum 2", "sum 2"],
        flags=(),
        arguments=("PORT",),
        torchrun="the children inherit TORCHELASTIC_USE_AGENT_STORE and wait for a store that nobody serves",
    ),
    "mp.spawn at the launcher's address": Script(
        _REDUCE + "import torch.multiprocessing as mp\n"
        "def work(rank, size):\n"
        "    reduce(rank, size)\n"
        "if __name__ == '__main__':\n"
        "    size = int(os.environ['PROCESSES'])\n"
        "    mp.spawn(work, args=(size,), nprocs=size)\n",
        ["sum 2", "sum 2"],
        flags=(),
        torchrun="the agent's store counts one worker",
    ),
    "required --local-rank": Script(
        "import argparse\nparser = argparse.ArgumentParser()\n"
        "parser.add_argument('--local-rank', type=int, required=True)\n"
        "parser.add_argument('--lr')\n"
        "args = parser.parse_args()\nprint('rank', args.local_rank, args.lr, flush=True)\n",
        ["rank 0 1", "rank 1 1"],
        flags=("--nproc-per-node=2", "--pass-local-rank"),
        arguments=("--lr", "1"),
        torchrun="it has no such flag",
    ),
    "--use-env": Script(
        "import os\nprint('rank', os.environ['LOCAL_RANK'], flush=True)\n",
        ["rank 0", "rank 1"],
        flags=("--nproc-per-node=2", "--use-env"),
        torchrun="it has no such flag",
    ),
    "the macro in an argument": Script(
        "import sys\nprint(sys.argv[1], flush=True)\n", ["rank=0", "rank=1"], arguments=("rank=${local_rank}",)
    ),
    "one worker for each processor": Script(
        "import os\nprint(os.environ['LOCAL_WORLD_SIZE'] == str(len(os.sched_getaffinity(0))), flush=True)\n",
        ["True"] * len(os.sched_getaffinity(0)),
        flags=("--nproc-per-node=cpu",),
        torchrun="" if os.cpu_count() == len(os.sched_getaffinity(0)) else "it counts processors it may not use",
    ),
    "auto": Script(
        "import os\nif os.environ['RANK'] == '0': print('workers', os.environ['WORLD_SIZE'] > '0', flush=True)\n",
        ["workers True"],
        flags=("--nproc-per-node=auto",),
    ),
    "daemons": Script(
        "import subprocess, sys\n"
        "subprocess.Popen([sys.executable, '-c', 'import time; time.sleep(600)'], start_new_session=True)\n"
        "print('done', flush=True)\n",
        ["done", "done"],
        torchrun="daemons outlive it",
    ),
    "a folder of its own": Script(
        _REDUCE + "import tempfile\nos.chdir(tempfile.gettempdir())\nreduce()\n", ["sum 2", "sum 2"]
    ),
    "a process group of its own": Script(
        _REDUCE + "if os.getpid() != os.getsid(0): os.setpgid(0, 0)\nreduce()\n", ["sum 2", "sum 2"]
    ),
    "spawned data loaders": Script(
        "import torch\nfrom torch.utils.data import DataLoader, Dataset\n"
        "class Numbers(Dataset):\n"
        "    def __len__(self): return 8\n"
        "    def __getitem__(self, index): return torch.tensor(index)\n"
        "if __name__ == '__main__':\n"
        "    loader = DataLoader(Numbers(), batch_size=4, num_workers=1, multiprocessing_context='spawn')\n"
        "    print('sum', sum(int(batch.sum()) for batch in loader), flush=True)\n",
        ["sum 28", "sum 28"],
    ),
    "standard input": Script(
        "import sys\nprint('read', repr(sys.stdin.read()), flush=True)\n", ["read 'yes'"], flags=(), stdin="yes"
    ),
    "handlers of its own": Script(
        "import signal, subprocess\n"
        "signal.signal(signal.SIGTERM, lambda *_: None)\n"
        "signal.signal(signal.SIGCHLD, signal.SIG_IGN)\n"
        "subprocess.run(['true'])\nprint('done', flush=True)\n",
        ["done", "done"],
    ),
    "os._exit(0)": Script("import os\nprint('bye', flush=True)\nos._exit(0)\n", ["bye", "bye"]),
    "os._exit(5)": Script("import os\nprint('bye', flush=True)\nos._exit(5)\n", ["bye"], flags=(), code=1),
    "sys.exit of a text": Script("import sys\nsys.exit('no data')\n", [], flags=(), code=1),
    "a notebook export": Script(
        "#!/usr/bin/env python\n# coding: utf-8\n\n# In[1]:\n\nget = 1\n\n# In[2]:\n\nprint('cell', get, flush=True)\n",
        ["cell 1"],
        flags=(),
    ),
    "a shell wrapper": Script(
        f'#!/bin/sh\nexec {sys.executable} -c \'import os; print("rank", os.environ["RANK"], flush=True)\'\n',
        ["rank 0", "rank 1"],
        flags=("--nproc-per-node=2", "--no-python"),
        name="wrapper.sh",
    ),
    "a shell script that starts torchrun": Script(
        f"#!/bin/sh\nexec {sys.executable} -m torch.distributed.run --nproc-per-node=2 --master-port=$1 $2\n",
        ["sum 2", "sum 2"],
        flags=("--no-python",),
        arguments=("PORT", "REDUCE"),
        name="start.sh",
    ),
}


def launch(launcher: Sequence[str], script: Script, folder: Path) -> subprocess.CompletedProcess[str]:
    path = folder / script.name
    path.write_text(script.source)
    path.chmod(0o755)
    (folder / "reduce.py").write_text(_REDUCE + "reduce()\n")
    values = {"PORT": str(free_port()), "REDUCE": str(folder / "reduce.py")}
    arguments = [values.get(argument, argument) for argument in script.arguments]
    return subprocess.run(
        [*launcher, *script.flags, str(path), *arguments],
        env={**os.environ, "PYTHONPATH": str(ROOT), "PROCESSES": "2"},
        input=script.stdin,
        capture_output=True,
        text=True,
        timeout=_LIMIT_S,
        check=False,
    )


@pytest.mark.parametrize("name", SCRIPTS)
def test_a_script_runs_by_hand(name: str, tmp_path: Path) -> None:
    done = launch(ELASTICRUN, SCRIPTS[name], tmp_path)
    assert (done.returncode, sorted(done.stdout.splitlines())) == (SCRIPTS[name].code, SCRIPTS[name].prints), (
        done.stderr
    )


@pytest.mark.parametrize("name", [name for name, script in SCRIPTS.items() if not script.torchrun])
def test_torchrun_runs_it_likewise(name: str, tmp_path: Path) -> None:
    done = launch(TORCHRUN, SCRIPTS[name], tmp_path)
    assert (done.returncode, sorted(done.stdout.splitlines())) == (SCRIPTS[name].code, SCRIPTS[name].prints), (
        done.stderr
    )


def test_a_module_runs_from_the_current_folder(tmp_path: Path) -> None:
    package = tmp_path / "mine"
    package.mkdir()
    (package / "__init__.py").touch()
    (package / "train.py").write_text("import os\nprint('rank', os.environ['RANK'], __package__, flush=True)\n")
    environ = {**os.environ, "PYTHONPATH": str(ROOT)}
    command = [*ELASTICRUN, "--nproc-per-node=2", "-m", "mine.train"]
    done = subprocess.run(command, cwd=tmp_path, env=environ, capture_output=True, text=True, timeout=_LIMIT_S)
    assert sorted(done.stdout.splitlines()) == ["rank 0 mine", "rank 1 mine"], done.stderr


_IGNORES_ITS_RANK = """\
import argparse
parser = argparse.ArgumentParser()
parser.add_argument("--local_rank", type=int, default=0)
print("rank", parser.parse_args().local_rank, flush=True)
"""


def test_a_script_that_would_take_every_worker_for_the_first_is_told_of_once(tmp_path: Path) -> None:
    asks = Script(_IGNORES_ITS_RANK, [], flags=("--nproc-per-node=2",))
    done = launch(ELASTICRUN, asks, tmp_path)
    assert done.stderr.count("--pass-local-rank") == 1
    passed = Script(_IGNORES_ITS_RANK, [], flags=("--nproc-per-node=2", "--pass-local-rank"))
    done = launch(ELASTICRUN, passed, tmp_path)
    assert sorted(done.stdout.splitlines()) == ["rank 0", "rank 1"]
    assert done.stderr == ""


def static(rank: int, port: int) -> list[str]:
    return ["--nnodes=2", f"--node-rank={rank}", "--master-addr=127.0.0.1", f"--master-port={port}"]


def start(flags: Sequence[str], script: Path) -> subprocess.Popen[str]:
    environ = {**os.environ, "PYTHONPATH": str(ROOT)}
    command = [*ELASTICRUN, *flags, str(script)]
    return subprocess.Popen(command, env=environ, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)


def test_two_nodes_meet_at_a_master_address(tmp_path: Path) -> None:
    script, port = tmp_path / "reduce.py", free_port()
    script.write_text(_REDUCE + "reduce()\n")
    nodes = [start([*static(rank, port), "--nproc-per-node=2"], script) for rank in (1, 0)]
    try:
        said = [node.communicate(timeout=_LIMIT_S) for node in nodes]
        assert [node.returncode for node in nodes] == [0, 0], said
        assert [out.splitlines() for out, _ in said] == [["sum 4"] * 2] * 2
    finally:
        for node in nodes:
            node.kill()


@pytest.mark.parametrize("rank", [0, 1])
def test_a_node_that_waits_for_its_peer_obeys_sigterm(rank: int, tmp_path: Path) -> None:
    script = tmp_path / "reduce.py"
    script.write_text(_REDUCE + "reduce()\n")
    node = start(static(rank, free_port()), script)
    try:
        assert node.stderr is not None
        assert "waiting for" in node.stderr.readline()
        node.send_signal(signal.SIGTERM)
        assert node.wait(20) == 143
    finally:
        node.kill()
        node.communicate()
