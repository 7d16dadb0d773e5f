"""The same loss curve on any ranks: training that is killed and continues on other ranks, and undisturbed training.

A small model with dropout learns a few pages of Python's sources. In each leg but the last, one rank gets SIGKILL some
steps after a snapshot, and the next leg restores that on its own ranks. `make trajectories` runs the whole matrix with
300 steps; otherwise a part of it runs with 60.
"""

from __future__ import annotations

import sysconfig
import tempfile
from collections import Counter
from dataclasses import dataclass, replace
from pathlib import Path

import pytest

from tests.trainer.harness import start_group, wait_for
from tests.trainer.long.trajectory_ranks import Leg, Ranks, digest_of

pytestmark = pytest.mark.timeout(1800)

SEQ_LEN, BATCH, WINDOWS = 32, 8, 240  # 60 and 300 steps are whole epochs
SNAPSHOT_EVERY, KILL_AFTER = 10, 3  # steps
LEAST_FALL = 1.0  # nats: a flat curve proves nothing
SHORT = 60
CONFIG = {
    "preset": "nano",
    "seq_len": SEQ_LEN,
    "global_batch": BATCH,
    "micro_batch": 2,
    "dropout": 0.1,
    "learning_rate": 5e-4,  # at twice that, rounding in fp32 changes the loss by up to 4e-5
    "shard_size": 2,  # of hsdp
    "snapshot_keep": 100,
}


@dataclass(frozen=True)
class Trial:
    """The precision, the number of steps, and the largest allowed difference from the undisturbed curve."""

    name: str
    precision: str
    steps: int
    limit: float  # relative to the loss


FP32 = Trial("fp32", "fp32", 60, 1e-5)  # killed after step 10: 50 steps are compared
FP64 = Trial("fp64", "fp64", 300, 1e-12)
EXACT = Trial("exact", "fp32", 300, 0.0)


UNDISTURBED = Leg(2)


@dataclass(frozen=True)
class Case:
    name: str
    legs: tuple[Leg, ...]
    optimizer_impl: str = "fused"
    trials: tuple[Trial, ...] = (FP32, FP64)
    reference: Leg = UNDISTURBED
    is_naive: bool = False  # each rank has a fixed batch: the comparison must fail


def _twice(name: str, leg: Leg, optimizer_impl: str = "fused") -> Case:
    """The same ranks repeat the curve bit for bit."""
    return Case(name, (leg, leg), optimizer_impl, (EXACT,), reference=leg)


CASES = (
    _twice("2→2 ddp", Leg(2)),
    _twice("2→2 fsdp", Leg(2, "fsdp")),
    _twice("2→2 shard_grad_op", Leg(2, "shard_grad_op")),
    _twice("4→4 hsdp", Leg(4, "hsdp")),
    _twice("2→2 foreach", Leg(2), "foreach"),
    _twice("2→2 plain", Leg(2), "plain"),
    _twice("3→3 ddp", Leg(3)),
    _twice("3→3 fsdp", Leg(3, "fsdp")),
    Case("2→1", (Leg(2), Leg(1))),
    Case("1→2", (Leg(1), Leg(2))),
    Case("2→3", (Leg(2), Leg(3))),
    Case("4→3→2", (Leg(4), Leg(3), Leg(2))),
    Case("ddp→fsdp", (Leg(2), Leg(2, "fsdp"))),
    Case("fsdp→ddp", (Leg(2, "fsdp"), Leg(2))),
    Case("fsdp 2→1", (Leg(2, "fsdp"), Leg(1, "fsdp"))),
    Case("fsdp 4→3→2", (Leg(4, "fsdp"), Leg(3, "fsdp"), Leg(2, "fsdp"))),
    Case("shard_grad_op 2→3", (Leg(2, "shard_grad_op"), Leg(3, "shard_grad_op"))),
    Case("hsdp 4→2", (Leg(4, "hsdp"), Leg(2, "hsdp"))),
    Case("foreach 2→1", (Leg(2), Leg(1)), "foreach"),
    Case("plain fsdp 2→1", (Leg(2, "fsdp"), Leg(1, "fsdp")), "plain"),
    Case("naive 2→1", (Leg(2), Leg(1)), trials=(FP32,), is_naive=True),
)
SECTION = ("2→2 ddp", "4→4 hsdp", "2→3", "fsdp 2→1", "naive 2→1")


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    if "trial" not in metafunc.fixturenames:
        return
    option = metafunc.config.getoption
    is_whole = option("--whole", default=False)
    names = option("--cases", default=None) or ([case.name for case in CASES] if is_whole else SECTION)
    trials = option("--trials", default=None) or (("fp32", "fp64", "exact") if is_whole else ("fp32", "exact"))
    steps = option("--steps", default=None) or (None if is_whole else SHORT)
    chosen = [
        pytest.param(case, replace(trial, steps=steps or trial.steps), id=f"{case.name}, {trial.name}")
        for case in CASES
        for trial in case.trials
        if case.name in names and trial.name in trials
    ]
    metafunc.parametrize(("case", "trial"), chosen)


class Bench:
    """Runs training in `folder`. Undisturbed training runs once for each way to compute it."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        text = (Path(sysconfig.get_path("stdlib")) / "argparse.py").read_bytes()[: WINDOWS * SEQ_LEN + 1]
        (folder / "pages.txt").write_bytes(text)
        starts = range(0, WINDOWS * SEQ_LEN, SEQ_LEN)
        self.windows = [digest_of(text[start : start + SEQ_LEN]) for start in starts]
        self._undisturbed: dict[tuple[str, int, str, Leg], dict[int, float]] = {}

    def reference(self, case: Case, trial: Trial) -> dict[int, float]:
        key = trial.precision, trial.steps, case.optimizer_impl, case.reference
        if key not in self._undisturbed:
            undisturbed = Case("undisturbed", (case.reference,), optimizer_impl=case.optimizer_impl)
            self._undisturbed[key], _ = self.run(undisturbed, trial)
        return self._undisturbed[key]

    def run(self, case: Case, trial: Trial) -> tuple[dict[int, float], list[str]]:
        """The curve without repeated steps, and the digests of its sequences."""
        job_dir = Path(tempfile.mkdtemp(dir=self._folder))
        config = {**CONFIG, "data": str(self._folder / "pages.txt"), "steps": trial.steps}
        config |= {"precision": trial.precision, "optimizer_impl": case.optimizer_impl}
        curve: dict[int, float] = {}
        seen: list[str] = []
        restored = 0
        for number, leg in enumerate(case.legs, start=1):
            end = trial.steps if number == len(case.legs) else restored + SNAPSHOT_EVERY
            every = {"snapshot_interval": str(SNAPSHOT_EVERY if end < trial.steps else trial.steps)}
            with Ranks(job_dir, leg, number, config | every, is_naive=case.is_naive) as ranks:
                if end == trial.steps:
                    ranks.until_end()
                else:
                    kill_after(ranks, end)
            losses = ranks.losses()
            curve |= {step: loss for step, loss in losses.items() if restored < step <= end}
            seen += ranks.seen(restored + 1, end)
            restored = end
        return curve, seen


def kill_after(ranks: Ranks, step: int) -> None:
    """Kill the last rank some steps after the snapshot of `step`, and remove newer snapshots."""
    ranks.until_step(step + KILL_AFTER)
    wait_for(lambda: step in ranks.committed(), f"a snapshot of step {step}")
    ranks.processes[-1].kill()
    for process in ranks.processes[:-1]:
        process.join(300)
        assert process.exitcode not in (0, None), f"a rank continued without its peer\n{ranks.printed()}"
    ranks.forget_after(step)


def largest_difference(curve: dict[int, float], reference: dict[int, float], after: int) -> float:
    """The largest relative difference after the step `after`. Raises KeyError for a missing step."""
    steps = [step for step in reference if step > after]
    return max(abs(curve[step] - reference[step]) / reference[step] for step in steps)


def is_exact(seen: list[str], windows: list[str]) -> bool:
    """Whether whole epochs were seen: every window equally often."""
    epochs, rest = divmod(len(seen), len(windows))
    return rest == 0 and Counter(seen) == Counter(windows * epochs)


@pytest.fixture(scope="module")
def bench(tmp_path_factory: pytest.TempPathFactory) -> Bench:
    return Bench(tmp_path_factory.mktemp("trajectories"))


def test_killed_training_continues_on_the_same_curve(bench: Bench, case: Case, trial: Trial) -> None:
    reference = bench.reference(case, trial)
    curve, seen = bench.run(case, trial)
    largest = largest_difference(curve, reference, SNAPSHOT_EVERY)
    print(f"largest difference {largest:.2e}, loss {curve[1]:.3f} → {curve[trial.steps]:.3f}")
    if case.is_naive:  # a trainer whose batch depends on the number of ranks must not pass
        assert largest > 100 * trial.limit
        assert not is_exact(seen, bench.windows)
        return
    assert largest <= trial.limit
    assert curve[1] - curve[trial.steps] > LEAST_FALL
    assert is_exact(seen, bench.windows), "some samples were used more often than others"


def test_a_restore_on_another_world_size_is_reported(tmp_path: Path) -> None:
    with start_group(tmp_path, 2, steps=1) as group:
        assert group.wait() == [0, 0], group.outputs()
    with start_group(tmp_path, 1, generation=2, steps=2) as group:
        assert group.wait() == [0], group.outputs()
    assert "(world size 2 → 1)" in group.events("restored")[0]["sentence"]


def test_a_curve_is_compared_step_by_step_after_the_restore() -> None:
    reference = {1: 5.0, 2: 4.0, 3: 2.0}
    assert largest_difference({1: 9.0, 2: 4.0, 3: 2.5}, reference, after=1) == 0.25
    with pytest.raises(KeyError):
        largest_difference({1: 5.0, 2: 4.0}, reference, after=1)


def test_a_repeated_or_missing_sample_changes_the_curve() -> None:
    windows = ["a", "b", "c", "c"]
    assert is_exact(["c", "a", "c", "b"] * 2, windows)
    assert not is_exact(["c", "a", "b", "b"], windows)
    assert not is_exact(["c", "a", "c"], windows)
