"""A DDP script of the kind that users write, whose function can be entered again. Its options are JSON.

The loss of a step depends on everything that a snapshot holds: model, moments, learning rate and position in the data.
"""

import functools
import json
import os
import pathlib
import signal
import sys
import time
from pathlib import Path

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, TensorDataset

from trainer.contract import env
from trainer.script import notes as script_notes
from trainer.script import script_state
from trainer.script.sampler import ElasticSampler
from trainer.supervised import Supervised, reenter

DEFAULTS = {
    "steps": 100,
    "step_s": 0.0,  # within the optimizer's step, so that kills hit it
    "loaders": 0,
    "without": [],  # names of objects that restore does not get
    "is_own": False,  # a counter that differs between ranks is one of the objects
    "has_buffers": False,
    "raises_at": None,
    "accumulate": 1,
    "exchanges": False,  # a collective in the middle of the update
    "hangs_in": "",  # "collective", "update" or "script": all ranks but the last one, in step 6 of generation 1
    "stops_in_save": False,  # rank 1 of the first generation, in its first snapshot
}


class SlowAdamW(torch.optim.AdamW):
    pause_s = 0.0
    exchanges = False
    hang = None

    def step(self, closure=None):
        with torch.no_grad():
            self.param_groups[0]["params"][0].mul_(0.999)  # half of the update
        time.sleep(self.pause_s)
        if self.hang is not None:
            self.hang()
        if self.exchanges:
            dist.all_reduce(torch.zeros(1))
        return super().step(closure)


HANG = """
def hang(*arguments):
    pathlib.Path(os.environ["ORCHESTRATOR_JOB_DIR"], "hangs-" + os.environ["RANK"]).touch()
    time.sleep(3600)
"""


def build_hang(*, is_collective):
    """A function that hangs, as a collective does after gloo has lost a message, or in the script itself."""
    names = {"os": os, "pathlib": pathlib, "time": time}
    exec(compile(HANG, "/torch/distributed/hang.py" if is_collective else __file__, "exec"), names)
    return names["hang"]


class Forgetful:
    """torch.distributed with another `all_reduce`."""

    def __init__(self, hang):
        self.all_reduce = hang

    def __getattr__(self, name):
        return getattr(dist, name)


def stop_in_save():
    """Stop this process when its files of a snapshot are written, and before the others know that."""

    def stop(*arguments):
        Path(os.environ[env.JOB_DIR], "stopped").touch()
        os.kill(os.getpid(), signal.SIGSTOP)

    script_notes.leave_note = stop


class Counter:
    def __init__(self, value):
        self.value = value

    def state_dict(self):
        return {"value": self.value}

    def load_state_dict(self, state):
        """Keep the own value."""


def train(options):
    dist.init_process_group("gloo")
    torch.manual_seed(0)
    inner = torch.nn.BatchNorm1d(16) if options["has_buffers"] else torch.nn.GELU()
    model = torch.nn.Sequential(torch.nn.Linear(8, 16), inner, torch.nn.Linear(16, 1))
    # Otherwise DDP orders its buckets anew after the first step, and more than two ranks sum in another order.
    model = DistributedDataParallel(model, find_unused_parameters=True)
    optimizer = SlowAdamW(model.parameters(), lr=0.01)
    optimizer.pause_s, optimizer.exchanges = options["step_s"], options["exchanges"]
    scheduler = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, options["steps"])
    dataset = TensorDataset(torch.randn(600, 8, generator=torch.Generator().manual_seed(1)))
    sampler = ElasticSampler(dataset, batch_size=2)
    loader = DataLoader(dataset, batch_size=2, sampler=sampler, num_workers=options["loaders"], drop_last=True)
    run = Supervised(steps=options["steps"])
    objects = {"model": model, "optimizer": optimizer, "scheduler": scheduler, "sampler": sampler}
    if options["is_own"]:
        objects["counter"] = Counter(dist.get_rank())
    state = run.restore(**{name: each for name, each in objects.items() if name not in options["without"]})
    if options["stops_in_save"] and dist.get_rank() == 1 and state.step == 0:
        stop_in_save()
    step = state.step
    may_hang = os.environ[env.GENERATION] == "1" and dist.get_rank() < dist.get_world_size() - 1
    while step < options["steps"]:
        for (x,) in loader:
            hangs_in = options["hangs_in"] if step == 5 and may_hang else ""
            if hangs_in == "collective":
                script_state.dist = Forgetful(build_hang(is_collective=True))
            optimizer.hang = build_hang(is_collective=True) if hangs_in == "update" else None
            if hangs_in == "script":
                build_hang(is_collective=False)()
            loss = (model(x) - x.sum(dim=1, keepdim=True)).square().mean() / options["accumulate"]
            loss.backward()
            if step == options["raises_at"] and dist.get_rank() == 1:
                raise ValueError("an error of its own")
            if (step + 1) % options["accumulate"] == 0:
                optimizer.step()
                optimizer.zero_grad()
                scheduler.step()
            run.step(step, loss=loss)
            step += 1
            if step == options["steps"]:
                break
    dist.destroy_process_group()


if __name__ == "__main__":
    given = {**DEFAULTS, **json.loads(sys.argv[1])}
    print(f"started {os.getpid()}", flush=True)
    reenter(functools.partial(train, given))
