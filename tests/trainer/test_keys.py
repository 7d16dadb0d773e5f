"""Settings whose effect the loss does not show. See also long/test_exchanges.py."""

import pytest
import torch
from torch import nn
from torch.distributed.fsdp import CPUOffloadPolicy, FSDPModule, OffloadPolicy

from trainer.contract.config import TrainerConfig
from trainer.contract.env import parse_place
from trainer.contract.shapes import SHAPES
from trainer.model.decoder import Decoder
from trainer.parallel import sharding
from trainer.parallel import trainee as parallel
from trainer.parallel.replication import convert_batchnorm
from trainer.parallel.strategy import Layout
from trainer.parallel.trainee import build_trainee
from trainer.worker.heartbeat import Heartbeat
from trainer.worker.run import Run
from trainer.worker.waits import Waits

PLACE = parse_place({})
CPU, ACCELERATOR = torch.device("cpu"), torch.device("meta")  # nothing is computed on it
ONE_SHARD = Layout(strategy="fsdp", replicas=1, shards=1)


class Normalised(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.Sequential(nn.Conv2d(3, 4, 1), nn.BatchNorm2d(4), nn.Sequential(nn.BatchNorm2d(4)))


def make_decoder() -> Decoder:
    with torch.device("meta"):
        return Decoder(SHAPES["nano"], vocab_size=256, dropout=0.0)


def build(model: nn.Module, config: TrainerConfig, device: torch.device) -> parallel.Trainee:
    def write_values(model: nn.Module, _: object) -> None:
        for parameter in model.parameters():
            nn.init.zeros_(parameter)

    heartbeat = Heartbeat(PLACE, 1)
    run = Run(config=config, place=PLACE, device=device, heartbeat=heartbeat, waits=Waits(heartbeat))
    return build_trainee(run, model, write_values)


def test_batchnorm_is_converted_to_all_ranks_and_keeps_its_names():
    with torch.device("meta"):
        model = Normalised()
    names = list(model.state_dict())
    converted = convert_batchnorm(model)
    assert [type(converted.layers[1]), type(converted.layers[2][0])] == [nn.SyncBatchNorm] * 2
    assert list(converted.state_dict()) == names
    assert {value.device.type for value in converted.state_dict().values()} == {"meta"}


@pytest.mark.usefixtures("group_of_one")
@pytest.mark.parametrize(("device", "kind"), [(ACCELERATOR, nn.SyncBatchNorm), (CPU, nn.BatchNorm2d)], ids=str)
def test_batchnorm_is_converted_only_on_accelerators(monkeypatch, device, kind):
    monkeypatch.setattr(parallel, "refuse_unwritten", lambda model: None)  # `meta` has no values
    with torch.device("meta"):
        model = Normalised()
    config = TrainerConfig(strategy="ddp", sync_batchnorm=True, optimizer_impl="plain")
    assert type(build(model, config, device).model.layers[1]) is kind


@pytest.mark.usefixtures("group_of_one")
@pytest.mark.parametrize("offloads", [True, False])
def test_offloaded_parameters_are_on_the_host_and_buffers_on_the_device(monkeypatch, offloads):
    monkeypatch.setattr(parallel, "refuse_unwritten", lambda model: None)
    monkeypatch.setattr(parallel, "shard", lambda *_: None)  # it needs a mesh of accelerators
    with torch.device("meta"):
        model = Normalised()
    config = TrainerConfig(strategy="fsdp", cpu_offload=offloads, optimizer_impl="plain")
    model = build(model, config, ACCELERATOR).model
    assert {parameter.device for parameter in model.parameters()} == {CPU if offloads else ACCELERATOR}
    assert {buffer.device for buffer in model.buffers()} == {ACCELERATOR}


@pytest.mark.parametrize(
    ("config", "device", "policy"),
    [
        (TrainerConfig(strategy="fsdp", cpu_offload=True), torch.device("cuda"), CPUOffloadPolicy(pin_memory=True)),
        (TrainerConfig(strategy="fsdp", cpu_offload=True), CPU, CPUOffloadPolicy(pin_memory=False)),
        (TrainerConfig(strategy="fsdp"), torch.device("cuda"), OffloadPolicy()),
    ],
    ids=["pinned for a GPU", "not pinned without one", "no offload"],
)
def test_every_sharded_module_offloads(monkeypatch, config, device, policy):
    reported = []
    monkeypatch.setattr(sharding, "_build_mesh", lambda layout, device: None)
    monkeypatch.setattr(sharding, "fully_shard", lambda module, **options: reported.append(options["offload_policy"]))
    model = make_decoder()
    sharding.shard(model, list(model.blocks), ONE_SHARD, config, device)
    assert len(reported) > len(model.blocks)
    assert all(each == policy for each in reported)


@pytest.mark.usefixtures("group_of_one")
def test_blocks_are_prefetched_in_order_of_use(monkeypatch):
    forward, backward = {}, {}
    for reported, name in (
        (forward, "set_modules_to_forward_prefetch"),
        (backward, "set_modules_to_backward_prefetch"),
    ):
        monkeypatch.setattr(FSDPModule, name, lambda block, others, reported=reported: reported.update({block: others}))
    model = make_decoder()
    first, second, third, fourth = blocks = list(model.blocks)
    sharding.shard(model, blocks, ONE_SHARD, TrainerConfig(strategy="fsdp", prefetch_blocks=2), CPU)
    assert forward == {first: [second, third], second: [third, fourth], third: [fourth], fourth: []}
    assert backward == {first: [], second: [first], third: [second, first], fourth: [third, second]}


@pytest.mark.usefixtures("group_of_one")
@pytest.mark.parametrize(
    ("mode", "given"),
    [("none", []), ("default", [None] * 4), ("reduce-overhead", ["reduce-overhead"] * 4)],
    ids=str,
)
def test_each_block_is_compiled_in_the_configured_mode(monkeypatch, mode, given):
    modes = []
    monkeypatch.setattr(torch, "compile", lambda forward, mode: modes.append(mode) or forward)
    build(make_decoder(), TrainerConfig(strategy="ddp", compile=mode), CPU)
    assert modes == given


@pytest.mark.usefixtures("group_of_one")
@pytest.mark.parametrize(("mode", "count"), [("none", 0), ("reduce-overhead", 2)])
def test_every_microbatch_begins_a_step_for_cuda_graphs(monkeypatch, mode, count):
    begun = []
    monkeypatch.setattr(torch, "compile", lambda forward, mode: forward)
    monkeypatch.setattr(torch.compiler, "cudagraph_mark_step_begin", lambda: begun.append(True))
    trainee = build(make_decoder(), TrainerConfig(strategy="ddp", compile=mode), CPU)
    trainee.synchronize(is_last=False)
    trainee.synchronize(is_last=True)
    assert len(begun) == count
