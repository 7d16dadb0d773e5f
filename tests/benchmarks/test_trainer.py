"""The contestants of the trainer's benchmark: what is timed, the settings and the wrappers."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

import pytest
import torch
import torch.distributed as dist
from torch.distributed.fsdp import FSDPModule
from torch.nn.parallel import DistributedDataParallel

from benchmarks.trainer import handwritten, wrapped
from benchmarks.trainer.__main__ import parse_options, speed_of
from benchmarks.trainer.contestants import End, times_of_steps
from benchmarks.trainer.work import Work
from trainer.contract.config import TrainerConfig
from trainer.parallel import replication
from trainer.parallel import trainee as parallel

CPU = torch.device("cpu")


def make_work(**changes: object) -> Work:
    _, usual = parse_options([])
    return replace(usual, strategy="ddp", **changes)


@pytest.fixture
def group_of_one() -> Iterator[None]:
    dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
    yield
    dist.destroy_process_group()


def test_only_complete_windows_of_steps_are_timed() -> None:
    ends = [End(10.0, 20), End(11.0, 30), End(13.0, 40), End(20.0, 60)]
    assert times_of_steps(ends, 10) == [pytest.approx(0.1), pytest.approx(0.2)]


def test_several_ranks_on_a_gpu_are_refused(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        parse_options(["--device", "cuda", "--ranks", "2"])
    assert "spinning" in capsys.readouterr().err


def test_speed_is_in_tokens_and_as_a_share_of_the_peak() -> None:
    work = make_work(global_batch=4, seq_len=2048)
    assert speed_of("ours", 0.1024, work, 0.0512) == {"ours_ms": 102.4, "ours_tokens_per_s": 80000, "ours_mfu": 0.5}
    assert speed_of("ours", 0.1024, work, None)["ours_mfu"] is None


@pytest.mark.usefixtures("group_of_one")
def test_a_single_rank_has_the_wrapper_too(monkeypatch: pytest.MonkeyPatch) -> None:
    model, config = torch.nn.Linear(2, 2), TrainerConfig(strategy="ddp")
    monkeypatch.setattr(parallel, "replicate", replication.replicate)  # restored after the test
    assert vars(parallel)["replicate"](model, config, CPU) is model
    wrapped.put_wrapper_on()
    assert isinstance(vars(parallel)["replicate"](model, config, CPU), DistributedDataParallel)


@pytest.mark.usefixtures("group_of_one")
@pytest.mark.parametrize(("strategy", "kind"), [("ddp", DistributedDataParallel), ("fsdp", FSDPModule)])
def test_the_hand_written_loop_uses_the_wrapper_of_its_strategy(strategy: str, kind: type) -> None:
    work = {"strategy": strategy, "preset": "nano", "precision": "bf16", "is_compiled": False}
    assert isinstance(handwritten.build(work, CPU), kind)
