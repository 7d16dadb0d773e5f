"""Settings without effect are reported, and a node whose GPU cannot be used is refused."""

import pytest

from trainer.contract.config import parse_config
from trainer.errors import DeviceError
from trainer.parallel.ignored_settings import find_ignored
from trainer.worker.group import refuse_lost_devices


@pytest.mark.parametrize(
    ("options", "where", "keys"),
    [
        ({}, {"strategy": "ddp", "device": "cpu"}, []),
        ({"steps": 7, "bucket_mb": 50, "static_graph": True}, {"strategy": "ddp", "device": "cuda"}, []),
        (
            {"bucket_mb": 50, "static_graph": True},
            {"strategy": "fsdp", "device": "cuda"},
            ["bucket_mb", "static_graph"],
        ),
        ({"prefetch_blocks": 2}, {"strategy": "ddp", "device": "cuda"}, ["prefetch_blocks"]),
        ({"prefetch_blocks": 2, "shard_size": 2}, {"strategy": "hsdp", "device": "cuda"}, []),
        ({"shard_size": 2}, {"strategy": "fsdp", "device": "cuda"}, ["shard_size"]),
        ({"sync_batchnorm": True, "cpu_offload": True}, {"strategy": "fsdp", "device": "cuda"}, []),
        ({"sync_batchnorm": True}, {"strategy": "ddp", "device": "cpu"}, ["sync_batchnorm"]),
        ({"cpu_offload": True}, {"strategy": "fsdp", "device": "cpu"}, ["cpu_offload"]),
        ({"compile": "reduce-overhead"}, {"strategy": "ddp", "device": "cpu"}, ["compile"]),
        ({"compile": "default"}, {"strategy": "ddp", "device": "cpu"}, []),
        ({"weight_decay": 0}, {"strategy": "ddp", "device": "cpu", "has_own_optimizer": True}, ["weight_decay"]),
    ],
)
def test_a_setting_without_effect_is_reported(options, where, keys):
    notices = find_ignored(parse_config(options), **where)
    assert [notice.partition(":")[0] for notice in notices] == keys


def test_a_node_whose_gpu_torch_cannot_use_does_not_train_on_the_cpu(tmp_path):
    refuse_lost_devices(tmp_path, None, "13.0")
    (tmp_path / "nvidiactl").touch()
    refuse_lost_devices(tmp_path, None, "13.0")
    (tmp_path / "nvidia0").touch()
    with pytest.raises(DeviceError, match=r"this node has nvidia0, but torch .* finds no GPU that it can use"):
        refuse_lost_devices(tmp_path, None, "13.0")
    refuse_lost_devices(tmp_path, "", "13.0")  # the CPU was requested
    refuse_lost_devices(tmp_path, None, None)  # a torch without CUDA
