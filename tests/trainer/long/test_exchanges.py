"""How often two ranks exchange gradients in a step, and whose buffers they use."""

import json
from pathlib import Path

import pytest

from tests.trainer.harness import start_group

ENTRY = (str(Path(__file__).parents[1] / "keys_entry.py"),)
CASES = {
    "ddp": {"strategy": "ddp"},
    "ddp, each microbatch": {"strategy": "ddp", "gradient_sync": "microbatch"},
    "own buffers": {"strategy": "ddp", "broadcast_buffers": False},
    "sharded": {"strategy": "fsdp"},
    "sharded, once": {"strategy": "fsdp", "gradient_sync": "step"},
    "copies": {"strategy": "hsdp", "shard_size": 1},
    "copies, one microbatch": {"strategy": "hsdp", "shard_size": 1, "micro_batch": 2},
}


@pytest.fixture(scope="module")
def found(tmp_path_factory: pytest.TempPathFactory) -> dict[str, dict]:
    """One step on two ranks, with two microbatches each by default."""
    with start_group(tmp_path_factory.mktemp("two"), 2, entry=ENTRY, cases=CASES) as group:
        assert group.wait() == [0, 0], group.outputs()
        return json.loads(group.processes[0].communicate(timeout=300)[0].splitlines()[-1])


def test_ddp_reduces_gradients_once_per_step_by_default(found):
    assert found["ddp"]["backward_passes"] == 1
    assert found["ddp, each microbatch"]["backward_passes"] == 2


def test_shards_are_reduced_after_each_microbatch_by_default(found):
    assert found["sharded, once"]["shards"] > 4, "each block, and the root"
    assert found["sharded"]["shards"] == 2 * found["sharded, once"]["shards"]


def test_copies_of_shards_are_always_reduced_once_per_step(found):
    assert found["copies"]["copies"] == found["copies, one microbatch"]["copies"] > 4


def test_rank_0s_buffers_are_broadcast_by_default(found):
    assert found["ddp"]["buffers"] == [0.0, 0.0]
    assert found["own buffers"]["buffers"] == [0.0, 1.0]
