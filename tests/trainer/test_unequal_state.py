"""Ranks whose optimizers have state for different parameters plan a snapshot together."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from tests.trainer.harness import start_group
from trainer.snapshot.run_state import KEY
from trainer.snapshot.whole import nest, read_flat, read_metadata

ENTRY = str(Path(__file__).with_name("unequal_state_entry.py"))


def save(folder: Path, case: str) -> list[str]:
    """What each rank has printed."""
    target = folder / "snapshot"
    target.mkdir()
    with start_group(folder / "job", 2, entry=(ENTRY, case, str(target))) as group:
        assert group.wait(100) == [0, 0], group.outputs()
        return [process.communicate(timeout=100)[0] for process in group.processes]


@pytest.mark.long
def test_a_snapshot_has_the_state_that_one_rank_alone_has(tmp_path: Path) -> None:
    save(tmp_path, "whole")
    metadata = read_metadata(tmp_path / "snapshot")
    state = nest(read_flat(tmp_path / "snapshot", metadata), metadata)[KEY]
    assert state["optimizer"].keys() == {"shared", "own"}
    assert torch.equal(state["optimizer"]["own"]["exp_avg"], torch.full((4, 2), 0.1))
    assert sorted(state["updated"].values()) == ["shared", "shared\nown"]


@pytest.mark.long
@pytest.mark.parametrize(
    ("case", "message"),
    [
        ("sharded", "optimizer.own.exp_avg is not whole"),
        ("number", "AdamW keeps 'number' as int; a snapshot can only restore tensors"),
    ],
)
def test_all_ranks_refuse_what_cannot_be_saved(tmp_path: Path, case: str, message: str) -> None:
    printed = save(tmp_path, case)
    assert all("refused: " in each and message in each for each in printed), printed
