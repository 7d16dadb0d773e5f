"""Runs with snapshots in an object store."""

import pytest

from tests.trainer.harness import start_group
from tests.trainer.test_remote import write
from trainer import snapshot
from trainer.contract import env
from trainer.snapshot import Remote
from trainer.snapshot.__main__ import main


def test_a_run_continues_from_a_store_on_other_ranks_with_another_strategy(tmp_path, capsys):
    store = Remote(f"local://{tmp_path}/store/job")
    options = {"steps": 6, "snapshot_interval": 3, "variables": {env.SNAPSHOT_DIR: str(store)}}
    with start_group(tmp_path, 2, strategy="fsdp", **options) as first:
        assert first.wait() == [0, 0], first.outputs()
    assert sorted(name.step for name in snapshot.list_committed(store)) == [3, 6]
    last = store / "step-00000006-a1-g1"
    assert main(["verify", str(last)]) == 0
    write(last / "__1_0.distcp", b"")
    with start_group(tmp_path, 1, generation=2, strategy="ddp", **options) as second:
        assert second.wait() == [0], second.outputs()
    assert second.events("restored")[0]["evidence"]["step"] == 3
    assert len(second.events("snapshot.quarantined")) == 1
    assert second.losses() == {step: pytest.approx(first.losses()[step], rel=1e-5) for step in (4, 5, 6)}
    capsys.readouterr()
    assert main(["ls", str(store)]) == 0
    assert [line.split()[:2] for line in capsys.readouterr().out.splitlines()[1:]] == [
        ["step-00000006-a1-g2", "committed"],
        ["step-00000003-a1-g1", "committed"],
        ["step-00000006-a1-g1", "quarantined"],
    ]
    assert main(["export", str(store / "step-00000003-a1-g1"), str(tmp_path / "state.pt")]) == 0
    assert not (tmp_path / "snapshots").exists()
