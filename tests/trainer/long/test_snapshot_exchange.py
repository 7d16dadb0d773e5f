"""Exporting, importing and comparing snapshots."""

import json
import subprocess
import sys
import warnings

import pytest
import torch
import torch.distributed as dist
from safetensors.torch import load_file
from torch import nn

from tests.trainer.harness import ROOT, Group, start_group
from trainer import snapshot
from trainer.snapshot.__main__ import main


@pytest.fixture(scope="module")
def group(tmp_path_factory) -> Group:
    """Two ranks of FSDP, with snapshots of steps 1 and 2."""
    with start_group(tmp_path_factory.mktemp("job"), 2, strategy="fsdp", steps=2, snapshot_interval=1) as group:
        assert group.wait() == [0, 0], group.outputs()
    return group


def snapshot_of(group, step):
    return group.job_dir / f"snapshots/step-{step:08d}-a1-g1"


@pytest.mark.parametrize("suffix", ["pt", "safetensors"])
def test_a_single_file_is_imported_as_it_was_exported(group, tmp_path, capsys, suffix):
    file, back = tmp_path / f"state.{suffix}", tmp_path / "back"
    assert main(["export", str(snapshot_of(group, 2)), str(file)]) == 0
    assert main(["import", str(file), str(back)]) == 0
    assert main(["verify", str(back)]) == 0
    assert main(["diff", str(snapshot_of(group, 2)), str(back)]) == 0
    assert capsys.readouterr().out.endswith("no difference\n")


def test_training_continues_from_an_imported_state(group, tmp_path):
    """One rank of DDP continues from the state of two ranks of FSDP, through one file."""
    assert main(["export", str(snapshot_of(group, 1)), str(tmp_path / "state.safetensors")]) == 0
    assert main(["import", str(tmp_path / "state.safetensors"), str(tmp_path / "imported")]) == 0
    (tmp_path / "job").mkdir()
    with start_group(tmp_path / "job", 1, steps=2, variables=restoring(tmp_path / "imported")) as other:
        assert other.wait() == [0], other.outputs()
    assert other.losses() == {2: pytest.approx(group.losses()[2], rel=1e-5)}


def test_the_state_of_another_optimizer_is_refused_but_not_its_weights(group, tmp_path, capsys):
    whole, other = tmp_path / "whole.pt", tmp_path / "other.pt"
    assert main(["export", str(snapshot_of(group, 1)), str(whole)]) == 0
    state = torch.load(whole, weights_only=True)
    momentum = {name: {"momentum_buffer": moments["exp_avg"]} for name, moments in state["optimizer"].items()}
    torch.save({**state, "optimizer": momentum}, other)
    for folder, *options in (["momentum"], ["weights", "--weights"]):
        (tmp_path / f"of-{folder}").mkdir()
        assert main(["import", str(other), str(tmp_path / folder), *options]) == 0
    reported = capsys.readouterr().out.splitlines()
    assert reported[1].endswith(
        "with optimizer state (momentum_buffer): only an optimizer that keeps these can continue from it"
    )
    assert reported[2].endswith("without optimizer state by parameter name: the run's optimizer starts afresh")
    with start_group(tmp_path / "of-momentum", 1, steps=2, variables=restoring(tmp_path / "momentum")) as refused:
        assert refused.wait() == [1]
        assert "it was made by another optimizer: export it and import it with --weights" in refused.outputs()
    with start_group(tmp_path / "of-weights", 1, steps=2, variables=restoring(tmp_path / "weights")) as fresh:
        assert fresh.wait() == [0], fresh.outputs()
    assert fresh.losses() == {2: pytest.approx(group.losses()[2], rel=1e-5)}, "the loss depends on the weights alone"


def restoring(folder):
    return {"ORCHESTRATOR_RESTORE_FROM": str(folder)}


def test_a_folder_has_hugging_faces_layout(group, tmp_path):
    folder = tmp_path / "model"
    assert main(["export", str(snapshot_of(group, 2)), str(folder), "--max-shard-bytes", "2000000"]) == 0
    index = json.loads((folder / "model.safetensors.index.json").read_text())
    shards = {name: load_file(folder / name) for name in set(index["weight_map"].values())}
    assert len(shards) > 1
    assert all(name in shards[file] for name, file in index["weight_map"].items())
    assert index["metadata"]["total_size"] == sum(t.nbytes for shard in shards.values() for t in shard.values())
    config = json.loads((folder / "config.json").read_text())
    embed = shards[index["weight_map"]["embed.weight"]]["embed.weight"]
    assert list(embed.shape) == [config["vocab_size"], config["hidden_size"]]
    assert main(["import", str(folder), str(tmp_path / "back"), "--step", "7"]) == 0
    assert snapshot.verify(tmp_path / "back").step == 7


def test_weights_alone_are_a_plain_state_dict(group, tmp_path):
    assert main(["export", str(snapshot_of(group, 2)), str(tmp_path / "weights.pt"), "--weights"]) == 0
    weights = torch.load(tmp_path / "weights.pt", weights_only=True)
    assert weights["embed.weight"].shape == (256, 128)


def test_two_snapshots_differ_tensor_by_tensor(group, capsys):
    assert main(["diff", str(snapshot_of(group, 1)), str(snapshot_of(group, 2))]) == 1
    lines = capsys.readouterr().out.splitlines()
    assert "run.step: 1 against 2" in lines
    (embed,) = [line for line in lines if line.startswith("run.model.embed.weight: ")]
    assert "of 32768 values differ, by" in embed


def test_a_damaged_snapshot_is_neither_exported_nor_compared(group, tmp_path, capsys):
    damaged = tmp_path / "damaged"
    subprocess.run(["cp", "-r", str(snapshot_of(group, 2)), str(damaged)], check=True)
    (damaged / "__1_0.distcp").write_bytes(b"")
    assert main(["export", str(damaged), str(tmp_path / "state.pt")]) == 1
    assert not (tmp_path / "state.pt").exists()
    assert main(["diff", str(damaged), str(snapshot_of(group, 2))]) == 2
    assert capsys.readouterr().err.count("DamagedSnapshot: __1_0.distcp: has 0 bytes") == 2


def test_nothing_is_overwritten(group, tmp_path, capsys):
    (tmp_path / "state.pt").touch()
    assert main(["export", str(snapshot_of(group, 2)), str(tmp_path / "state.pt")]) == 1
    assert "exists: choose another target" in capsys.readouterr().err


def test_a_classic_fsdp_checkpoint_can_be_imported(tmp_path, capsys):
    """Written by FullyShardedDataParallel with SHARDED_STATE_DICT, like code for torch before 2.4."""
    from torch.distributed.checkpoint import FileSystemWriter, save
    from torch.distributed.fsdp import FullyShardedDataParallel, StateDictType

    torch.manual_seed(0)
    dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # the class is deprecated
            plain = nn.Sequential(nn.Linear(4, 8), nn.Linear(8, 2))
            expected = {name: value.detach().clone() for name, value in plain.named_parameters()}
            model = FullyShardedDataParallel(plain, device_id=torch.device("cpu"), use_orig_params=True)
            optimizer = torch.optim.AdamW(model.parameters())
            model(torch.ones(1, 4)).sum().backward()
            optimizer.step()
            expected = {name: value.detach().clone() for name, value in model.named_parameters()}
            with FullyShardedDataParallel.state_dict_type(model, StateDictType.SHARDED_STATE_DICT):
                state = {
                    "model": model.state_dict(),
                    "optim": FullyShardedDataParallel.optim_state_dict(model, optimizer),
                }
            save(state, storage_writer=FileSystemWriter(tmp_path / "classic"))
    finally:
        dist.destroy_process_group()
    assert main(["import", str(tmp_path / "classic"), str(tmp_path / "in"), "--step", "1"]) == 0
    assert main(["export", str(tmp_path / "in"), str(tmp_path / "out.pt")]) == 0
    found = torch.load(tmp_path / "out.pt", weights_only=True)
    assert found["model"].keys() == {"0.weight", "0.bias", "1.weight", "1.bias"}
    assert all(
        torch.equal(found["model"][name.replace("_fsdp_wrapped_module.", "")], value)
        for name, value in expected.items()
    )
    assert found["optimizer"]["0.weight"]["exp_avg"].abs().sum() > 0
    assert "with optimizer state (exp_avg, exp_avg_sq)" in capsys.readouterr().out


def test_a_plain_torch_save_is_imported_from_any_wrapper(tmp_path, capsys):
    model = nn.Linear(3, 2)
    wrapped = {f"module._orig_mod.{name}": value for name, value in model.state_dict().items()}
    optimizer = torch.optim.AdamW(model.parameters())
    torch.save({"state_dict": wrapped, "optimizer": optimizer.state_dict(), "step": 5}, tmp_path / "plain.pt")
    assert main(["import", str(tmp_path / "plain.pt"), str(tmp_path / "in")]) == 0
    assert "2 tensors at step 5" in (reported := capsys.readouterr().out)
    assert "the run's optimizer starts afresh" in reported, "its state is keyed by position"


@pytest.mark.parametrize(("name", "content"), [("a.pt", b"no"), ("a.safetensors", b"no"), ("b.pt", None)])
def test_a_failed_import_gives_one_line(tmp_path, capsys, name, content):
    if content is None:
        torch.save({"a": 1, "b": 2}, tmp_path / name)
    else:
        (tmp_path / name).write_bytes(content)
    assert main(["import", str(tmp_path / name), str(tmp_path / "in")]) == 1
    assert capsys.readouterr().err.count("\n") == 1
    assert not (tmp_path / "in").exists()


def test_the_list_names_every_state_without_torch(group, tmp_path):
    snapshots = tmp_path / "snapshots"
    subprocess.run(["cp", "-r", str(group.job_dir / "snapshots"), str(snapshots)], check=True)
    (snapshots / "step-00000003-a1-g1").mkdir()
    snapshot.quarantine(snapshots / "step-00000001-a1-g1")
    code = (
        "import sys; from trainer.snapshot.__main__ import main; main(sys.argv[1:]); sys.exit('torch' in sys.modules)"
    )
    command = [sys.executable, "-c", code, "ls", str(snapshots)]
    printed = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=300, check=True).stdout
    lines = printed.splitlines()[1:]
    assert [line.split()[0] for line in lines] == [
        "step-00000003-a1-g1",
        "step-00000002-a1-g1",
        "step-00000001-a1-g1.quarantined",
    ]
    assert ["not committed" in lines[0], " fsdp " in lines[1], "quarantined" in lines[2]] == [True] * 3
