"""Training scripts in the style of well-known examples. Each waits halfway until one of its workers is killed.

`wait(rank)` does nothing if WAITS is not set, or after the first generation. A line that begins with "done" has the
result.
"""

from __future__ import annotations

import os
import signal
from pathlib import Path

from tests.elastic.scripts_table import Script

_WAIT = """\
import os, pathlib, time
def wait(rank):
    if "WAITS" in os.environ and os.environ["TORCHELASTIC_RESTART_COUNT"] == "0":
        pathlib.Path(os.environ["WAITS"], f"waits-{rank}").write_text(f"{os.getpid()}\\n")
        time.sleep(3600)
"""
_DONE = """\
def done(*what):
    os.write(1, f"done {' '.join(map(str, what))}\\n".encode())
"""
_DATA = """\
import torch, torch.distributed as dist
from torch.utils.data import DataLoader, DistributedSampler, TensorDataset
dataset = TensorDataset(torch.randn(64, 8), torch.randn(64, 1))
"""
_NETWORK = "model = torch.nn.Sequential(torch.nn.Linear(8, 16), torch.nn.ReLU(), torch.nn.Linear(16, 1))\n"
_LOOP = """\
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
for step in range(1, 7):
    loss = model(torch.ones(4, 8)).square().mean()
    loss.backward()
    optimizer.step()
    optimizer.zero_grad()
    if step == 3: wait(dist.get_rank())
done("step", step, "of", dist.get_world_size())
dist.destroy_process_group()
"""

_DDP = """\
from torch.nn.parallel import DistributedDataParallel as DDP
def setup():
    dist.init_process_group("gloo")
def train(model, loader, optimizer, epoch):
    loader.sampler.set_epoch(epoch)
    for data, target in loader:
        optimizer.zero_grad()
        torch.nn.functional.mse_loss(model(data), target).backward()
        optimizer.step()
def main():
    setup()
    rank = int(os.environ["RANK"])
    loader = DataLoader(dataset, batch_size=8, sampler=DistributedSampler(dataset))
    model = DDP(torch.nn.Linear(8, 1))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    for epoch in range(1, 4):
        train(model, loader, optimizer, epoch)
        if epoch == 2: wait(rank)
    done("epoch", epoch, "rank", rank)
    dist.destroy_process_group()
if __name__ == "__main__":
    main()
"""
_SNAPSHOTS = """\
from torch.distributed.elastic.multiprocessing.errors import record
from torch.nn.parallel import DistributedDataParallel as DDP
class Trainer:
    def __init__(self, model, loader, optimizer, snapshot_path):
        self.rank = int(os.environ["RANK"])
        self.loader, self.optimizer, self.epochs_run, self.snapshot_path = loader, optimizer, 0, snapshot_path
        if os.path.exists(snapshot_path):
            snapshot = torch.load(snapshot_path, map_location="cpu")
            model.load_state_dict(snapshot["MODEL_STATE"])
            self.epochs_run = snapshot["EPOCHS_RUN"]
            print(f"Resuming training from snapshot at Epoch {self.epochs_run}")
        self.started_at = self.epochs_run
        self.model = DDP(model)
    def save(self, epoch):
        torch.save({"MODEL_STATE": self.model.module.state_dict(), "EPOCHS_RUN": epoch}, self.snapshot_path)
    def train(self, epochs):
        for epoch in range(self.epochs_run, epochs):
            self.loader.sampler.set_epoch(epoch)
            for source, targets in self.loader:
                self.optimizer.zero_grad()
                torch.nn.functional.mse_loss(self.model(source), targets).backward()
                self.optimizer.step()
            if self.rank == 0: self.save(epoch + 1)
            dist.barrier()
            if epoch == 1: wait(self.rank)
@record
def main(snapshot_path):
    dist.init_process_group("gloo")
    loader = DataLoader(dataset, batch_size=8, shuffle=False, sampler=DistributedSampler(dataset))
    model = torch.nn.Linear(8, 1)
    trainer = Trainer(model, loader, torch.optim.SGD(model.parameters(), lr=1e-3), snapshot_path)
    trainer.train(4)
    done("rank", trainer.rank, "resumed", trainer.started_at == (2 if "WAITS" in os.environ else 0))
    dist.destroy_process_group()
if __name__ == "__main__":
    import sys
    main(sys.argv[1])
"""
_IMAGENET = """\
import argparse, torch, torch.distributed as dist, torch.multiprocessing as mp
parser = argparse.ArgumentParser()
parser.add_argument("--world-size", default=-1, type=int)
parser.add_argument("--rank", default=-1, type=int)
parser.add_argument("--dist-url", default="env://")
parser.add_argument("--multiprocessing-distributed", action="store_true")
def main():
    args = parser.parse_args()
    if args.dist_url == "env://" and args.world_size == -1:
        args.world_size = int(os.environ["WORLD_SIZE"])
    if args.dist_url == "tcp://":
        args.dist_url, args.world_size, args.rank = f"tcp://127.0.0.1:{find_free_port()}", 1, 0
    devices = 2
    if args.multiprocessing_distributed:
        args.world_size *= devices
        mp.spawn(main_worker, nprocs=devices, args=(devices, args))
    else:
        main_worker(int(os.environ["LOCAL_RANK"]), devices, args)
def main_worker(device, devices, args):
    if args.dist_url == "env://" and args.rank == -1:
        args.rank = int(os.environ["RANK"])
    if args.multiprocessing_distributed:
        args.rank = args.rank * devices + device
    dist.init_process_group("gloo", init_method=args.dist_url, world_size=args.world_size, rank=args.rank)
    model = torch.nn.parallel.DistributedDataParallel(torch.nn.Linear(8, 1))
    model(torch.ones(2, 8)).square().mean().backward()
    wait(args.rank)
    done("rank", args.rank, "of", args.world_size)
    dist.destroy_process_group()
if __name__ == "__main__":
    main()
"""
_PORT = """\
def find_free_port():
    import socket
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]
"""
_NANO = """\
import torch
from contextlib import nullcontext
from torch.distributed import destroy_process_group, init_process_group
from torch.nn.parallel import DistributedDataParallel as DDP
backend, device, gradient_accumulation_steps, max_iters, out_dir = "gloo", "cpu", 4, 6, "out"
ddp = int(os.environ.get("RANK", -1)) != -1
if ddp:
    init_process_group(backend=backend)
    ddp_rank, ddp_world_size = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
    ddp_local_rank = int(os.environ["LOCAL_RANK"])
    master_process, seed_offset = ddp_rank == 0, ddp_rank
    assert gradient_accumulation_steps % ddp_world_size == 0
    gradient_accumulation_steps //= ddp_world_size
else:
    master_process, seed_offset, ddp_world_size = True, 0, 1
if master_process: os.makedirs(out_dir, exist_ok=True)
torch.manual_seed(1337 + seed_offset)
exec("max_iters = 5")  # as its configurator
model = torch.nn.Embedding(64, 64)
if ddp: model = DDP(model)
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
for iter_num in range(max_iters):
    for micro_step in range(gradient_accumulation_steps):
        if ddp: model.require_backward_grad_sync = micro_step == gradient_accumulation_steps - 1
        X = torch.randint(64, (4, 16))
        with nullcontext():
            loss = torch.nn.functional.cross_entropy(model(X).view(-1, 64), X.view(-1)) / gradient_accumulation_steps
        loss.backward()
    optimizer.step()
    optimizer.zero_grad(set_to_none=True)
    if iter_num == 2: wait(ddp_rank)
done("iterations", iter_num + 1, "accumulated", gradient_accumulation_steps)
if ddp: destroy_process_group()
"""
_COMPILED = """\
import torch, torch.distributed as dist
dist.init_process_group("gloo")
model = torch.nn.parallel.DistributedDataParallel(torch.nn.Linear(8, 1))
model = torch.compile(model)
"""
_FSDP1 = """\
import torch, torch.distributed as dist
from torch.distributed.fsdp import FullyShardedDataParallel as FSDP
from torch.distributed.fsdp.wrap import size_based_auto_wrap_policy
import functools
dist.init_process_group("gloo")
"""
_FSDP2 = """\
import torch, torch.distributed as dist
from torch.distributed.fsdp import fully_shard
dist.init_process_group("gloo")
"""
_DCP = """\
import sys, torch, torch.distributed as dist
import torch.distributed.checkpoint as dcp
from torch.distributed.checkpoint.state_dict import get_state_dict, set_state_dict
from torch.distributed.checkpoint.stateful import Stateful
from torch.distributed.fsdp import fully_shard
class AppState(Stateful):
    def __init__(self, model, optimizer): self.model, self.optimizer, self.step = model, optimizer, 0
    def state_dict(self):
        model_state, optimizer_state = get_state_dict(self.model, self.optimizer)
        return {"model": model_state, "optimizer": optimizer_state, "step": self.step}
    def load_state_dict(self, state):
        self.step = state["step"]
        set_state_dict(
            self.model, self.optimizer, model_state_dict=state["model"], optim_state_dict=state["optimizer"]
        )
dist.init_process_group("gloo")
model = torch.nn.Linear(8, 8)
fully_shard(model, mesh=dist.init_device_mesh("cpu", (dist.get_world_size(),)))
app = AppState(model, torch.optim.AdamW(model.parameters(), lr=1e-2))
folder = sys.argv[1]
if os.path.exists(f"{folder}/.metadata"):
    dcp.load({"app": app}, checkpoint_id=folder)
started_at = app.step
while app.step < 5:
    app.model(torch.ones(4, 8)).square().mean().backward()
    app.optimizer.step()
    app.optimizer.zero_grad()
    app.step += 1
    if app.step == 3:
        dcp.async_save({"app": app}, checkpoint_id=folder).result()
        dist.barrier()
        wait(dist.get_rank())
done("step", app.step, "resumed", started_at == (3 if "WAITS" in os.environ else 0))
dist.destroy_process_group()
"""
_ACCELERATE = """\
import torch
from accelerate import Accelerator
accelerator = Accelerator(cpu=True)
model = torch.nn.Linear(8, 1)
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
data = torch.utils.data.DataLoader(torch.utils.data.TensorDataset(torch.ones(24, 8)), batch_size=2)
model, optimizer, data = accelerator.prepare(model, optimizer, data)
for step, (batch,) in enumerate(data, 1):
    accelerator.backward(model(batch).square().mean())
    optimizer.step()
    optimizer.zero_grad()
    if step == 3: wait(accelerator.process_index)
done("step", step, "of", accelerator.num_processes)
accelerator.end_training()
"""
_LIGHTNING = """\
import torch, lightning
class Model(lightning.LightningModule):
    def __init__(self):
        super().__init__()
        self.layer = torch.nn.Linear(8, 1)
    def training_step(self, batch, number):
        if number == 2: wait(self.global_rank)
        return self.layer(batch[0]).square().mean()
    def configure_optimizers(self):
        return torch.optim.SGD(self.parameters(), lr=0.01)
data = torch.utils.data.DataLoader(torch.utils.data.TensorDataset(torch.ones(24, 8)), batch_size=2)
trainer = lightning.Trainer(accelerator="cpu", devices=2, num_nodes=1, strategy="ddp", max_epochs=1, logger=False,
    enable_checkpointing=False, enable_progress_bar=False, enable_model_summary=False)
trainer.fit(Model(), data)
done("step", trainer.global_step, "of", trainer.world_size)
"""
_TRANSFORMERS = """\
import torch
from transformers import HfArgumentParser, Trainer, TrainerCallback, TrainingArguments
class Model(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.layer = torch.nn.Linear(8, 1)
    def forward(self, x, labels=None):
        return {"loss": (self.layer(x) - labels).square().mean()}
class Wait(TrainerCallback):
    def on_step_end(self, args, state, control, **others):
        if state.global_step == 3: wait(args.process_index)
(args,) = HfArgumentParser(TrainingArguments).parse_args_into_dataclasses()
data = [{"x": torch.ones(8), "labels": torch.ones(1)}] * 24
trainer = Trainer(model=Model(), args=args, train_dataset=data, callbacks=[Wait()])
trainer.train()
done("step", trainer.state.global_step, "of", args.world_size)
"""
# What deepspeed.init_distributed and deepspeed.initialize do with the environment and with args.local_rank (0.19).
_DEEPSPEED_CONVENTIONS = """\
import argparse, torch, torch.distributed as dist
parser = argparse.ArgumentParser()
parser.add_argument("--local_rank", type=int, default=-1, help="local rank passed from distributed launcher")
parser.add_argument("--deepspeed", action="store_true")
parser.add_argument("--deepspeed_config", type=str)
args = parser.parse_args()
assert all(name in os.environ for name in ("RANK", "WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT", "LOCAL_RANK"))
rank, world_size = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
dist.init_process_group("gloo", init_method=None, rank=rank, world_size=world_size)
assert args.local_rank == int(os.environ["LOCAL_RANK"]), "Mismatch in local rank setting"
model = torch.nn.parallel.DistributedDataParallel(torch.nn.Linear(8, 1))
"""
_DEEPSPEED = """\
import argparse, deepspeed, torch, torch.distributed as dist
parser = argparse.ArgumentParser()
parser.add_argument("--local_rank", type=int, default=-1, help="local rank passed from distributed launcher")
args = deepspeed.add_config_arguments(parser).parse_args()
deepspeed.init_distributed(dist_backend="gloo")
config = {"train_micro_batch_size_per_gpu": 2, "optimizer": {"type": "SGD", "params": {"lr": 0.1}}}
model = torch.nn.Linear(8, 1)
engine, *_ = deepspeed.initialize(args=args, model=model, model_parameters=model.parameters(), config=config)
for step in range(1, 7):
    engine.backward(engine(torch.ones(2, 8)).square().mean())
    engine.step()
    if step == 3: wait(dist.get_rank())
done("step", step, "of", dist.get_world_size())
"""

_HEAD = _WAIT + _DONE
_STEPS = ["done step 6 of 2"] * 2
_WRAPPED = "model = FSDP(model, auto_wrap_policy=functools.partial(size_based_auto_wrap_policy, min_num_params=100)"
TRAINING = {
    "ddp": Script(source=_HEAD + _DATA + _DDP, prints=["done epoch 3 rank 0", "done epoch 3 rank 1"]),
    "ddp with snapshots": Script(
        source=_HEAD + _DATA + _SNAPSHOTS,
        prints=["done rank 0 resumed True", "done rank 1 resumed True"],
        arguments=("snapshot.pt",),
    ),
    "ddp as a module": Script(
        source=_HEAD + _DATA + _DDP,
        prints=["done epoch 3 rank 0", "done epoch 3 rank 1"],
        run="module",
        name="package/train.py",
    ),
    "imagenet at the launcher's address": Script(
        source=_HEAD + _PORT + _IMAGENET,
        prints=["done rank 0 of 2", "done rank 1 of 2"],
        arguments=("--multiprocessing-distributed",),
        workers="1",
        not_torchrun="the agent's store counts one worker",
    ),
    "imagenet at its own address": Script(
        source=_HEAD + _PORT + _IMAGENET,
        prints=["done rank 0 of 2", "done rank 1 of 2"],
        arguments=("--multiprocessing-distributed", "--dist-url", "tcp://"),
        workers="1",
        not_torchrun="the children inherit TORCHELASTIC_USE_AGENT_STORE and wait for a store that does not exist",
    ),
    "imagenet without its own processes": Script(
        source=_HEAD + _PORT + _IMAGENET, prints=["done rank 0 of 2", "done rank 1 of 2"]
    ),
    "nanoGPT": Script(source=_HEAD + _NANO, prints=["done iterations 5 accumulated 2"] * 2),
    "torch.compile": Script(source=_HEAD + _COMPILED + _LOOP, prints=_STEPS),
    "fsdp1": Script(
        source=_HEAD + _FSDP1 + _NETWORK + _WRAPPED + ", device_id=torch.device('cpu'))\n" + _LOOP, prints=_STEPS
    ),
    "fsdp2": Script(
        source=_HEAD + _FSDP2 + _NETWORK + 'mesh = dist.init_device_mesh("cpu", (dist.get_world_size(),))\n'
        "for layer in model: fully_shard(layer, mesh=mesh) if list(layer.parameters()) else None\n"
        "fully_shard(model, mesh=mesh)\n" + _LOOP,
        prints=_STEPS,
    ),
    "dcp": Script(source=_HEAD + _DCP, prints=["done step 5 resumed True"] * 2, arguments=("checkpoint",)),
    "accelerate": Script(source=_HEAD + _ACCELERATE, prints=_STEPS, needs="accelerate"),
    "lightning": Script(source=_HEAD + _LIGHTNING, prints=_STEPS, needs="lightning"),
    "transformers": Script(
        source=_HEAD + _TRANSFORMERS,
        prints=_STEPS,
        arguments=(
            *("--output_dir=out", "--max_steps=6", "--per_device_train_batch_size=2", "--use_cpu=True"),
            *("--report_to=none", "--save_strategy=no", "--disable_tqdm=True", "--ddp_backend=gloo"),
        ),
        needs="transformers",
    ),
    "deepspeed's conventions": Script(
        source=_HEAD + _DEEPSPEED_CONVENTIONS + _LOOP, prints=_STEPS, pass_local_rank=True, not_torchrun="no such flag"
    ),
    "deepspeed": Script(source=_HEAD + _DEEPSPEED, prints=_STEPS, needs="deepspeed", env={"DS_ACCELERATOR": "cpu"}),
}


def kill_waiting(folder: Path) -> bool:
    """Kill the last waiting worker once two wait. Returns whether it did."""
    waiting = {path.name: path.read_text() for path in folder.glob("waits-*")}
    if len(waiting) < 2 or not all(text.endswith("\n") for text in waiting.values()):
        return False
    os.kill(int(waiting[max(waiting)]), signal.SIGKILL)
    return True
