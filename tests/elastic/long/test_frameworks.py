"""Scripts of other frameworks, unchanged: they recover from a kill under elasticrun and come to their end."""

from __future__ import annotations

import importlib.util
import os
import signal
from pathlib import Path

import pytest

from tests.elastic.harness import Job, wait_for

FAST = "--monitor-interval=0.05"

FSDP2 = """
import torch, torch.distributed as dist
from torch.distributed.fsdp import fully_shard
dist.init_process_group("gloo")
model = torch.nn.Sequential(torch.nn.Linear(8, 16), torch.nn.ReLU(), torch.nn.Linear(16, 1))
mesh = dist.init_device_mesh("cpu", (dist.get_world_size(),))
for layer in model: fully_shard(layer, mesh=mesh) if list(layer.parameters()) else None
fully_shard(model, mesh=mesh)
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
for step in range(1, STEPS + 1):
    loss = model(torch.ones(4, 8)).square().mean()
    loss.backward()
    optimizer.step()
    optimizer.zero_grad()
    print("step", step, flush=True)
    wait(step)
dist.destroy_process_group()
"""

ACCELERATE = """
import torch
from accelerate import Accelerator
accelerator = Accelerator(cpu=True)
assert accelerator.num_processes == 2
model = torch.nn.Linear(8, 1)
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
data = torch.utils.data.DataLoader(torch.utils.data.TensorDataset(torch.ones(4 * STEPS, 8)), batch_size=2)
model, optimizer, data = accelerator.prepare(model, optimizer, data)
for step, (batch,) in enumerate(data, 1):
    accelerator.backward(model(batch).square().mean())
    optimizer.step()
    optimizer.zero_grad()
    print("step", step, flush=True)
    wait(step)
accelerator.end_training()
"""

LIGHTNING = """
import torch, lightning
class Model(lightning.LightningModule):
    def __init__(self):
        super().__init__()
        self.layer = torch.nn.Linear(8, 1)
    def training_step(self, batch, number):
        print("step", number + 1, flush=True)
        wait(number + 1)
        return self.layer(batch[0]).square().mean()
    def configure_optimizers(self):
        return torch.optim.SGD(self.parameters(), lr=0.01)
data = torch.utils.data.DataLoader(torch.utils.data.TensorDataset(torch.ones(4 * STEPS, 8)), batch_size=2)
trainer = lightning.Trainer(accelerator="cpu", devices=2, num_nodes=1, strategy="ddp", max_epochs=1, logger=False,
    enable_checkpointing=False, enable_progress_bar=False, enable_model_summary=False)
trainer.fit(Model(), data)
assert trainer.world_size == 2
"""

# The first generation stops half-way, until it is killed.
HEAD = """
import os, time
STEPS = 6
def wait(step):
    while step == 3 and os.environ["TORCHELASTIC_RESTART_COUNT"] == "0": time.sleep(0.05)
"""


@pytest.mark.timeout(240)
@pytest.mark.parametrize(
    ("needs", "text"),
    [("torch", FSDP2), ("accelerate", ACCELERATE), ("lightning", LIGHTNING)],
    ids=["fsdp2", "accelerate", "lightning"],
)
def test_it_trains_through_a_kill(job: Job, tmp_path: Path, needs: str, text: str) -> None:
    if importlib.util.find_spec(needs) is None:
        pytest.skip(f"{needs} is not installed")
    script = tmp_path / "train.py"
    script.write_text(HEAD + text)
    agent = job.policy(max_restarts=1).start("--nproc-per-node=2", FAST, str(script))
    pids = agent.pids(1)
    wait_for(lambda: all("step 3" in agent.log(1, rank) for rank in range(2)), "third step of both", 100)
    os.kill(pids[1], signal.SIGKILL)
    assert agent.wait(100) == 0, agent.log(2)
    assert all("step 6" in agent.log(2, rank) for rank in range(2))
    assert agent.events("generation.started")[-1]["evidence"]["fresh"] == {}
