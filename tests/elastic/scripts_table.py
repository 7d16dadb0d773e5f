"""Typical scripts of users. Each is complete, and none was written for elasticrun.

The tests run each outside a job and as a job, and compare the lines that it prints.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal

REDUCE = """\
import os, sys, torch, torch.distributed as dist

def reduce(rank=None, size=None):
    places = {} if rank is None else {"rank": rank, "world_size": size}
    dist.init_process_group("gloo", **places)
    total = torch.ones(1)
    dist.all_reduce(total)
    os.write(1, f"sum {int(total)}\\n".encode())
    dist.destroy_process_group()
"""
# Python with -u writes the end of a line separately, and the output of several workers is mixed.
_WHOLE_LINES = """\
def print(*words, flush=True):
    import os
    os.write(1, (" ".join(map(str, words)) + "\\n").encode())
"""
_OWN_PORT = """\
def find_free_port():
    import socket
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]
"""
_SPAWN = """\
import torch.multiprocessing as mp
def work(rank, size, port):
    os.environ.update(MASTER_ADDR="127.0.0.1", MASTER_PORT=str(port))
    reduce(rank, size)
if __name__ == "__main__":
    mp.spawn(work, args=(2, find_free_port()), nprocs=2)
"""
IGNORES_LOCAL_RANK = """\
import argparse
parser = argparse.ArgumentParser()
parser.add_argument("--local_rank", type=int, default=0)
print("rank", parser.parse_args().local_rank, flush=True)
"""


@dataclass(frozen=True, kw_only=True)
class Script:
    """`prints` has the lines of all workers, sorted. `not_...` says why the script is not run there.

    `not_torchrun` is about runs outside a job.
    """

    source: str
    prints: Sequence[str]
    run: Literal["script", "module", "command"] = "script"
    workers: str = "2"
    arguments: Sequence[str] = ()
    pass_local_rank: bool = False
    flags: Sequence[str] = ()  # further flags outside a job
    env: Mapping[str, str] = field(default_factory=dict)
    name: str = "script.py"
    stdin: str = ""
    code: int = 0
    needs: str = "torch"  # a module that must be installed
    not_elasticrun: str = ""
    not_torchrun: str = ""
    not_a_job: str = ""

    @property
    def target(self) -> str:
        """What the launcher starts, in the folder of `write`."""
        if self.run == "module":
            return ".".join(Path(self.name).with_suffix("").parts)
        return f"./{self.name}" if self.run == "command" else self.name

    def write(self, folder: Path) -> None:
        """Write the script, and `reduce.py` for scripts that start another one."""
        path = folder / self.name
        path.parent.mkdir(exist_ok=True)
        shares_output = path.suffix == ".py" and self.workers != "1"
        path.write_text((_WHOLE_LINES if shares_output else "") + self.source)
        path.chmod(0o755)
        (folder / "reduce.py").write_text(REDUCE + "reduce()\n")

    def launch_arguments(self) -> list[str]:
        """The arguments of elasticrun or torchrun."""
        how = {"script": (), "module": ("-m",), "command": ("--no-python",)}[self.run]
        rank = ("--pass-local-rank",) if self.pass_local_rank else ()
        return [f"--nproc-per-node={self.workers}", *self.flags, *rank, *how, self.target, *self.arguments]

    def as_job(self, folder: Path, launcher: str) -> dict[str, object]:
        run: dict[str, object] = {"workdir": str(folder), "env": dict(self.env)}
        if self.run == "command":
            run["command"] = [self.target, *self.arguments]
        else:
            run |= {self.run: self.target, "args": list(self.arguments), "pass_local_rank": self.pass_local_rank}
        topology = {"workers_per_node": int(self.workers)}
        return {"name": "script", "launcher": launcher, "run": run, "topology": topology}


NO_SUCH_FLAG = "it has no such flag"
_NO_STORE_THERE = "the workers connect to an address at which the agent serves no store"
SCRIPTS = {
    "plain": Script(source=REDUCE + "reduce()\n", prints=["sum 2", "sum 2"]),
    "mp.spawn at its own port": Script(
        source=REDUCE + _OWN_PORT + _SPAWN,
        prints=["sum 2", "sum 2"],
        workers="1",
        not_torchrun=_NO_STORE_THERE,
    ),
    "mp.spawn at its own port, as a command": Script(
        source=f"#!{sys.executable}\n" + REDUCE + _OWN_PORT + _SPAWN,
        prints=["sum 2", "sum 2"],
        run="command",
        workers="1",
        not_torchrun=_NO_STORE_THERE,
    ),
    "several workers at their own port": Script(
        source=REDUCE + _OWN_PORT + "import pathlib, time\n"
        "port = pathlib.Path('port')\n"
        "if os.environ['RANK'] == '0':\n"
        "    port.with_suffix('.new').write_text(str(find_free_port()))\n"
        "    port.with_suffix('.new').rename(port)\n"
        "while not port.exists(): time.sleep(0.01)\n"
        "os.environ['MASTER_PORT'] = port.read_text()\n"
        "reduce()\n",
        prints=["sum 2", "sum 2"],
        not_elasticrun=_NO_STORE_THERE,
        not_torchrun=_NO_STORE_THERE,
    ),
    "mp.spawn at the launcher's address": Script(
        source=REDUCE + "import torch.multiprocessing as mp\n"
        "def work(rank, size):\n"
        "    reduce(rank, size)\n"
        "if __name__ == '__main__':\n"
        "    size = int(os.environ['PROCESSES'])\n"
        "    mp.spawn(work, args=(size,), nprocs=size)\n",
        prints=["sum 2", "sum 2"],
        workers="1",
        env={"PROCESSES": "2"},
        not_torchrun="the agent's store counts one worker",
    ),
    "required --local-rank": Script(
        source="import argparse\nparser = argparse.ArgumentParser()\n"
        "parser.add_argument('--local-rank', type=int, required=True)\n"
        "parser.add_argument('--lr')\n"
        "args = parser.parse_args()\nprint('rank', args.local_rank, args.lr, flush=True)\n",
        prints=["rank 0 1", "rank 1 1"],
        arguments=("--lr", "1"),
        pass_local_rank=True,
        not_torchrun=NO_SUCH_FLAG,
    ),
    "--local_rank with a default": Script(
        source=IGNORES_LOCAL_RANK, prints=["rank 0", "rank 1"], pass_local_rank=True, not_torchrun=NO_SUCH_FLAG
    ),
    "--use-env": Script(
        source="import os\nprint('rank', os.environ['LOCAL_RANK'], flush=True)\n",
        prints=["rank 0", "rank 1"],
        flags=("--use-env",),
        not_torchrun=NO_SUCH_FLAG,
    ),
    "the macro in an argument": Script(
        source="import sys\nprint(sys.argv[1], flush=True)\n",
        prints=["rank=0", "rank=1"],
        arguments=("rank=${local_rank}",),
    ),
    "one worker for each processor": Script(
        source="import os\nprint(os.environ['LOCAL_WORLD_SIZE'] == str(len(os.sched_getaffinity(0))), flush=True)\n",
        prints=["True"] * len(os.sched_getaffinity(0)),
        workers="cpu",
        not_torchrun="" if os.cpu_count() == len(os.sched_getaffinity(0)) else "it counts forbidden processors",
        not_a_job="topology.workers_per_node is a number or gpu",
    ),
    "auto": Script(
        source="import os\nif os.environ['RANK'] == '0': print('workers', os.environ['WORLD_SIZE'] > '0')\n",
        prints=["workers True"],
        workers="auto",
        not_a_job="topology.workers_per_node is a number or gpu",
    ),
    "daemons": Script(
        source="import subprocess, sys\n"
        "subprocess.Popen([sys.executable, '-c', 'import time; time.sleep(600)'], start_new_session=True)\n"
        "print('done', flush=True)\n",
        prints=["done", "done"],
        not_torchrun="daemons outlive it",
    ),
    "changes its folder": Script(
        source=REDUCE + "import tempfile\nos.chdir(tempfile.gettempdir())\nreduce()\n", prints=["sum 2", "sum 2"]
    ),
    "changes its process group": Script(
        source=REDUCE + "if os.getpid() != os.getsid(0): os.setpgid(0, 0)\nreduce()\n", prints=["sum 2", "sum 2"]
    ),
    "spawned data loaders": Script(
        source="import torch\nfrom torch.utils.data import DataLoader, Dataset\n"
        "class Numbers(Dataset):\n"
        "    def __len__(self): return 8\n"
        "    def __getitem__(self, index): return torch.tensor(index)\n"
        "if __name__ == '__main__':\n"
        "    loader = DataLoader(Numbers(), batch_size=4, num_workers=1, multiprocessing_context='spawn')\n"
        "    print('sum', sum(int(batch.sum()) for batch in loader), flush=True)\n",
        prints=["sum 28", "sum 28"],
    ),
    "standard input": Script(
        source="import sys\nprint('read', repr(sys.stdin.read()), flush=True)\n",
        prints=["read 'yes'"],
        workers="1",
        stdin="yes",
        not_a_job="a job has no standard input",
    ),
    "no standard input": Script(
        source="import sys\nprint('read', repr(sys.stdin.read()), flush=True)\n", prints=["read ''", "read ''"]
    ),
    "sets signal handlers": Script(
        source="import signal, subprocess\n"
        "signal.signal(signal.SIGTERM, lambda *_: None)\n"
        "signal.signal(signal.SIGCHLD, signal.SIG_IGN)\n"
        "subprocess.run(['true'])\nprint('done', flush=True)\n",
        prints=["done", "done"],
    ),
    "os._exit(5)": Script(
        source="import os\nprint('bye', flush=True)\nos._exit(5)\n", prints=["bye"], workers="1", code=1
    ),
    "sys.exit of a text": Script(
        source="import sys\nprint('bye', flush=True)\nsys.exit('no data')\n", prints=["bye"], workers="1", code=1
    ),
    "a notebook export": Script(
        source="#!/usr/bin/env python\n# coding: utf-8\n\n# In[1]:\n\nget = 1\n\n# In[2]:\n\n"
        "print('cell', get, flush=True)\n",
        prints=["cell 1"],
        workers="1",
    ),
    "a module": Script(
        source="import os\nprint('rank', os.environ['RANK'], __package__, flush=True)\n",
        prints=["rank 0 mine", "rank 1 mine"],
        run="module",
        name="mine/train.py",
    ),
    "the macro in an argument of a command": Script(
        source='#!/bin/sh\necho "$1"\n',
        prints=["rank=0", "rank=1"],
        run="command",
        arguments=("rank=${local_rank}",),
        name="echo.sh",
    ),
    "a shell wrapper": Script(
        source=f"#!/bin/sh\nexec {sys.executable} -c "
        """'import os; os.write(1, ("rank " + os.environ["RANK"] + chr(10)).encode())'\n""",
        prints=["rank 0", "rank 1"],
        run="command",
        name="wrapper.sh",
    ),
    "a shell script that starts torchrun": Script(
        source="#!/bin/sh\n"
        f"port=$({sys.executable} -c 'import socket as s; s = s.create_server((\"\", 0)); print(s.getsockname()[1])')\n"
        f"exec {sys.executable} -m torch.distributed.run --nproc-per-node=2 --master-port=$port reduce.py\n",
        prints=["sum 2", "sum 2"],
        run="command",
        workers="1",
        name="start.sh",
    ),
}
