"""An out-of-memory error names the largest part and a change that helps, and is still classified as one."""

import traceback
from pathlib import Path

import pytest
import torch

from tests.trainer.harness import start_group
from trainer.contract.config import parse_config
from trainer.contract.env import parse_place
from trainer.contract.failure import FailureKind, classify_failure
from trainer.elastic.health.postmortem import exception_line
from trainer.errors import OutOfMemory
from trainer.loop.out_of_memory import explained_shortage

ENTRY = (str(Path(__file__).with_name("starved_entry.py")),)
CONFIG = parse_config({"preset": "micro", "seq_len": 1024, "global_batch": 16, "micro_batch": 16})
# torch 2.13: c10/cuda/CUDACachingAllocator.cpp
CUDA = (
    "CUDA out of memory. Tried to allocate 2.00 GiB. GPU 0 has a total capacity of 79.1 GiB of which 1.0 GiB is free. "
    "Process 1 has 78.08 GiB memory in use. Of the allocated memory 76.1 GiB is allocated by PyTorch"
)


def explain(error: Exception) -> OutOfMemory:
    with pytest.raises(OutOfMemory) as raised, explained_shortage(CONFIG, parse_place({})):
        raise error
    return raised.value


@pytest.mark.long
def test_an_out_of_memory_error_says_what_to_change(tmp_path):
    options = {"preset": "nano", "seq_len": 1024, "global_batch": 64, "micro_batch": 64}
    with start_group(tmp_path, 1, entry=ENTRY, **options) as group:
        assert group.wait() == [1]
        output = group.outputs()
    ours, _, _ = output.partition("nanobind: leaked")  # printed by triton 3.8 at exit
    last = ours.strip().splitlines()[-1]
    assert last.startswith("trainer: OutOfMemory: "), output
    assert "can't allocate memory" in last
    assert "the largest part is activations" in last
    assert "try micro_batch: 32, at the same global batch" in last
    assert classify_failure(exit_code=1, output=output) is FailureKind.HOST_OOM


def test_an_explained_error_is_still_classified_as_device_oom():
    error = explain(torch.OutOfMemoryError(CUDA))
    text = str(error)
    assert text.startswith("CUDA out of memory. Tried to allocate 2.00 GiB; by estimate the largest part is")
    assert len(text) < 300, "the agent cuts messages at 500 characters"
    left = "".join(traceback.format_exception(error))  # as `record` leaves it for the agent
    assert exception_line(left) == f"trainer.errors.OutOfMemory: {text}"
    for output in (left, f"trainer: OutOfMemory: {text}"):
        assert classify_failure(exit_code=1, output=output) is FailureKind.DEVICE_OOM


def test_an_error_of_host_memory_is_explained_too():
    error = explain(MemoryError())
    assert str(error).startswith("MemoryError; by estimate")
    left = "".join(traceback.format_exception(error))
    assert classify_failure(exit_code=1, output=left) is FailureKind.HOST_OOM


def test_other_errors_are_not_explained():
    with pytest.raises(RuntimeError, match="shapes differ"), explained_shortage(CONFIG, parse_place({})):
        raise RuntimeError("shapes differ")


def test_an_error_of_a_users_own_model_is_not_explained():
    config = parse_config({"task": "my.task:build"})
    with pytest.raises(MemoryError), explained_shortage(config, parse_place({})):
        raise MemoryError
