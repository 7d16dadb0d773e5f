"""Memory that runs out is told with its largest part and a way out, and is classified as before."""

from pathlib import Path

import pytest
import torch

from tests.trainer.harness import start_group
from trainer.contract.config import parse_config
from trainer.contract.env import parse_place
from trainer.contract.failure import FailureKind, classify_failure
from trainer.errors import OutOfMemory
from trainer.shortage import explained_shortage

ENTRY = (str(Path(__file__).with_name("starved_entry.py")),)
CONFIG = parse_config({"preset": "micro", "seq_len": 1024, "global_batch": 16, "micro_batch": 16})
# torch 2.13: c10/cuda/CUDACachingAllocator.cpp
CUDA = (
    "CUDA out of memory. Tried to allocate 2.00 GiB. GPU 0 has a total capacity of 79.1 GiB of which 1.0 GiB is free. "
    "Process 1 has 78.08 GiB memory in use. Of the allocated memory 76.1 GiB is allocated by PyTorch"
)


def explain(error: Exception, *, world_size: int = 1) -> str:
    place = parse_place({"WORLD_SIZE": str(world_size)})
    with pytest.raises(OutOfMemory) as raised, explained_shortage(CONFIG, place):
        raise error
    return str(raised.value)


def test_a_trainer_without_memory_says_what_to_change(tmp_path):
    options = {"preset": "nano", "seq_len": 1024, "global_batch": 64, "micro_batch": 64}
    with start_group(tmp_path, 1, entry=ENTRY, **options) as group:
        assert group.wait() == [1]
        output = group.outputs()
    last = output.strip().splitlines()[-1]
    assert last.startswith("trainer: OutOfMemory: "), output
    assert "can't allocate memory" in last
    assert "the largest part is activations" in last
    assert "try micro_batch: 32, at the same global batch" in last
    assert classify_failure(exit_code=1, output=output) is FailureKind.HOST_OOM


def test_a_device_without_memory_stays_a_device_without_memory():
    text = explain(torch.OutOfMemoryError(CUDA))
    assert text.startswith("CUDA out of memory. Tried to allocate 2.00 GiB; by the formulas the largest part is")
    assert len(text) < 300, "the agent cuts messages at 500 characters"
    assert classify_failure(exit_code=1, output=f"trainer: OutOfMemory: {text}") is FailureKind.DEVICE_OOM


def test_the_hosts_memory_is_told_of_in_the_same_way():
    assert explain(MemoryError()).startswith("MemoryError; by the formulas")


def test_another_error_passes():
    with pytest.raises(RuntimeError, match="shapes differ"), explained_shortage(CONFIG, parse_place({})):
        raise RuntimeError("shapes differ")
