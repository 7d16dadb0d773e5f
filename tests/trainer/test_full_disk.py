"""An injected full disk fails one write of one rank."""

from __future__ import annotations

import errno
from pathlib import Path

import pytest

from trainer.contract.env import parse_place
from trainer.worker.full_disk import raise_injected_full_disk


def test_a_full_disk_is_injected_once_and_on_one_rank(tmp_path: Path) -> None:
    here, other = (
        parse_place({"RANK": str(rank), "WORLD_SIZE": "4", "ORCHESTRATOR_REPLICA_DIR": str(tmp_path)})
        for rank in (3, 2)
    )
    raise_injected_full_disk(here, "a snapshot")
    (tmp_path / "full-disk-3").touch()
    raise_injected_full_disk(other, "a snapshot")
    with pytest.raises(OSError, match="on purpose") as met:
        raise_injected_full_disk(here, "a snapshot")
    assert (met.value.errno, met.value.filename) == (errno.ENOSPC, "a snapshot")
    raise_injected_full_disk(here, "a snapshot")
    raise_injected_full_disk(parse_place({}), "outside a job")
