"""A killed run goes on upon any number of ranks, by either strategy, and its loss curve does not show it."""

import shutil
import signal
from pathlib import Path

import pytest

from tests.trainer.harness import TINY, Group, start_group
from trainer.contract import layout

STEPS = int(TINY["steps"])
KILLED_AFTER, RESTORED = 14, 12
NAIVE = (str(Path(__file__).with_name("naive_entry.py")),)


def run_and_kill(job_dir: Path, world_size: int) -> Path:
    """Run until a snapshot of step 12 stands, then SIGKILL the last rank in the middle of a later step."""
    job_dir.mkdir()
    with start_group(job_dir, world_size, strategy="ddp") as group:
        group.wait_for_step(KILLED_AFTER)
        group.processes[-1].send_signal(signal.SIGKILL)
        codes = group.wait(60)
    assert codes[-1] == -signal.SIGKILL
    assert 0 not in codes, "a rank went on without its peer"
    return job_dir


@pytest.fixture(scope="module")
def reference(tmp_path_factory: pytest.TempPathFactory) -> dict[int, float]:
    """The losses of two ranks that nobody disturbs."""
    with start_group(tmp_path_factory.mktemp("reference"), 2, strategy="ddp") as group:
        assert group.wait() == [0, 0], group.outputs()
        return group.losses()


@pytest.fixture(scope="module")
def killed_on_two(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return run_and_kill(tmp_path_factory.mktemp("two") / "job", 2)


@pytest.fixture(scope="module")
def killed_on_one(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return run_and_kill(tmp_path_factory.mktemp("one") / "job", 1)


def restore(killed: Path, job_dir: Path, world_size: int, **options: object) -> Group:
    """Continue a copy of a killed job as its next generation, to the end."""
    shutil.copytree(killed, job_dir)
    for path in layout.snapshots_dir(job_dir).glob("step-*"):
        if int(path.name.split("-")[1]) > RESTORED:
            shutil.rmtree(path)  # the kill came late on a busy machine
    with start_group(job_dir, world_size, generation=2, **options) as group:
        assert group.wait(120) == [0] * world_size, group.outputs()
    assert group.events("restored")[0]["evidence"]["step"] == RESTORED
    assert sorted(group.losses()) == list(range(RESTORED + 1, STEPS + 1))
    return group


def worst_relative(found: dict[int, float], expected: dict[int, float]) -> float:
    return max(abs(loss - expected[step]) / expected[step] for step, loss in found.items())


def test_the_same_ranks_repeat_the_curve(reference, killed_on_two, tmp_path):
    losses = restore(killed_on_two, tmp_path / "job", 2, strategy="ddp").losses()
    assert max(abs(loss - reference[step]) for step, loss in losses.items()) <= 1e-6


def test_one_rank_continues_what_two_began(reference, killed_on_two, tmp_path):
    group = restore(killed_on_two, tmp_path / "job", 1, strategy="ddp")
    assert worst_relative(group.losses(), reference) <= 1e-5
    assert "(world size 2 → 1)" in group.events("restored")[0]["sentence"]


def test_two_ranks_continue_what_one_began(reference, killed_on_one, tmp_path):
    assert worst_relative(restore(killed_on_one, tmp_path / "job", 2, strategy="ddp").losses(), reference) <= 1e-5


def test_fsdp_continues_what_ddp_began(reference, killed_on_two, tmp_path):
    assert worst_relative(restore(killed_on_two, tmp_path / "job", 2, strategy="fsdp").losses(), reference) <= 1e-5


def test_a_batch_per_rank_would_be_found_out(reference, killed_on_two, tmp_path):
    """The comparison above can fail: the usual trainer, whose batch shrinks with the ranks, does not pass it."""
    losses = restore(killed_on_two, tmp_path / "job", 1, strategy="ddp", entry=NAIVE).losses()
    assert worst_relative(losses, reference) > 1e-3


def test_fsdp_begins_where_ddp_begins(reference, tmp_path):
    with start_group(tmp_path, 2, strategy="fsdp", steps=3) as group:
        assert group.wait() == [0, 0], group.outputs()
    assert worst_relative(group.losses(), reference) <= 1e-6


def test_three_ranks_with_dropout_and_a_short_rank_agree_with_one(tmp_path):
    curves = []
    for world_size in (1, 3):
        job_dir = tmp_path / str(world_size)
        job_dir.mkdir()
        with start_group(job_dir, world_size, strategy="ddp", steps=6, dropout=0.1) as group:
            assert group.wait(120) == [0] * world_size, group.outputs()
        curves.append(group.losses())
    assert worst_relative(curves[1], curves[0]) <= 1e-5
