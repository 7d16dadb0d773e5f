"""A run continues from a large snapshot that its ranks verify together."""

from pathlib import Path

import pytest

from tests.trainer.harness import start_group
from trainer.contract import layout

ENTRY = (str(Path(__file__).parents[1] / "large_entry.py"),)


@pytest.mark.parametrize("strategy", ["ddp", "fsdp"])
def test_a_run_continues_from_a_snapshot_that_all_ranks_verified(tmp_path, strategy):
    options = {"strategy": strategy, "snapshot_interval": 2, "snapshot_keep": 10}
    with start_group(tmp_path, 2, steps=4, **options) as first:
        assert first.wait() == [0, 0], first.outputs()
    damaged = layout.snapshots_dir(tmp_path) / "step-00000004-a1-g1" / "__1_0.distcp"
    damaged.write_bytes(damaged.read_bytes()[:-1])
    with start_group(tmp_path, 2, generation=2, steps=6, entry=ENTRY, **options) as second:
        assert second.wait() == [0, 0], second.outputs()
        printed = [process.communicate(timeout=300)[0] for process in second.processes]
    assert [event["evidence"]["file"] for event in second.events("snapshot.quarantined")] == ["__1_0.distcp"]
    assert [event["evidence"]["step"] for event in second.events("restored")] == [2]
    assert min(second.losses()) == 3
    assert all(f"rank {rank} verifies __" in text for rank, text in enumerate(printed)), "both have read files"
