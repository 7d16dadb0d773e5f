"""The same curve on any ranks: trainings that are killed and go on elsewhere, beside undisturbed ones.

    python -m deploy.dev.trajectories [--cases NAME ...] [--trials fp32 fp64 exact] [--steps N] [--json]

A small model with dropout learns a few pages of Python's own sources. In each leg but the last, one rank gets SIGKILL
some steps after a snapshot; the next leg restores it on its own ranks. Exit status 1 when a limit does not hold.
"""

from __future__ import annotations

import argparse
import json
import os
import signal
import sys
import sysconfig
import tempfile
import time
from dataclasses import asdict, replace
from pathlib import Path

from deploy.dev.trajectories.cases import CASES, EXACT, FP32, FP64, Case, Leg, Trial
from deploy.dev.trajectories.ranks import LegFailed, Ranks, digest_of
from deploy.dev.trajectories.verdict import Verdict, is_exact, largest_difference

_SEQ_LEN, _BATCH, _WINDOWS = 32, 8, 240  # 60 and 300 steps are whole epochs
_SNAPSHOT_EVERY, _KILL_AFTER = 10, 3  # steps
_CONFIG = {
    "preset": "nano",
    "seq_len": _SEQ_LEN,
    "global_batch": _BATCH,
    "micro_batch": 2,
    "dropout": 0.1,
    "learning_rate": 5e-4,  # at twice that, these pages make of fp32's rounding up to 4e-5 of the loss
    "shard_size": 2,  # of hsdp
    "snapshot_keep": 100,
}
_TRIALS = {trial.name: trial for trial in (FP32, FP64, EXACT)}
_HEADING = f"{'case':19} {'trial':6} {'compared':>8} {'largest':>9} {'limit':>7}  {'loss':14} samples  verdict"


class Bench:
    """Runs trainings in `folder`, undisturbed ones once for each way to compute them."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        text = (Path(sysconfig.get_path("stdlib")) / "argparse.py").read_bytes()[: _WINDOWS * _SEQ_LEN + 1]
        (folder / "pages.txt").write_bytes(text)
        starts = range(0, _WINDOWS * _SEQ_LEN, _SEQ_LEN)
        self._windows = [digest_of(text[start : start + _SEQ_LEN]) for start in starts]
        self._undisturbed: dict[tuple[str, int, str, Leg], dict[int, float]] = {}

    def judge(self, case: Case, trial: Trial) -> Verdict:
        reference = self._reference(case, trial)
        curve, seen = self._run(case, trial)
        return Verdict(
            case=case.name,
            trial=trial.name,
            compared=trial.steps - _SNAPSHOT_EVERY,
            largest=largest_difference(curve, reference, _SNAPSHOT_EVERY),
            limit=trial.limit,
            first_loss=curve[1],
            last_loss=curve[trial.steps],
            samples_exact=is_exact(seen, self._windows),
            is_naive=case.is_naive,
        )

    def _reference(self, case: Case, trial: Trial) -> dict[int, float]:
        key = trial.precision, trial.steps, case.optimizer_impl, case.reference
        if key not in self._undisturbed:
            undisturbed = Case("undisturbed", (case.reference,), optimizer_impl=case.optimizer_impl)
            self._undisturbed[key], _ = self._run(undisturbed, trial)
        return self._undisturbed[key]

    def _run(self, case: Case, trial: Trial) -> tuple[dict[int, float], list[str]]:
        """The curve that counts, and the digests of the sequences that made it."""
        job_dir = Path(tempfile.mkdtemp(dir=self._folder))
        config = {**_CONFIG, "data": str(self._folder / "pages.txt"), "steps": trial.steps}
        config |= {"precision": trial.precision, "optimizer_impl": case.optimizer_impl}
        curve: dict[int, float] = {}
        seen: list[str] = []
        restored = 0
        for number, leg in enumerate(case.legs, start=1):
            end = trial.steps if number == len(case.legs) else restored + _SNAPSHOT_EVERY
            every = {"snapshot_interval": str(_SNAPSHOT_EVERY if end < trial.steps else trial.steps)}
            with Ranks(job_dir, leg, number, config | every, is_naive=case.is_naive) as ranks:
                if end == trial.steps:
                    ranks.until_end()
                else:
                    _kill_after(ranks, end)
            losses = ranks.losses()
            curve |= {step: loss for step, loss in losses.items() if restored < step <= end}
            seen += ranks.seen(restored + 1, end)
            restored = end
        return curve, seen


def _kill_after(ranks: Ranks, step: int) -> None:
    """Kill the last rank some steps after the snapshot of `step`, and take newer snapshots away."""
    ranks.until_step(step + _KILL_AFTER)
    deadline = time.monotonic() + 60
    while step not in ranks.committed():
        if time.monotonic() > deadline:
            raise LegFailed(f"no snapshot of step {step}\n{ranks.printed()}")
        time.sleep(0.01)
    os.kill(ranks.processes[-1].pid or 0, signal.SIGKILL)
    for process in ranks.processes[:-1]:
        process.join(60)
        if process.exitcode in (0, None):
            raise LegFailed(f"a rank went on without its peer\n{ranks.printed()}")
    ranks.forget_after(step)


def describe(verdict: Verdict) -> str:
    fall = f"{verdict.first_loss:.3f} → {verdict.last_loss:.3f}"
    found = "found out" if verdict.is_naive else "holds"
    samples = "exact" if verdict.samples_exact else "not exact"
    return (
        f"{verdict.case:19} {verdict.trial:6} {verdict.compared:8} {verdict.largest:9.2e} {verdict.limit:7.0e}  "
        f"{fall:14} {samples:9} {found if verdict.holds else 'DOES NOT HOLD'}"
    )


def _whole_epochs(text: str) -> int:
    steps = int(text)
    if steps * _BATCH % _WINDOWS or steps <= 2 * _SNAPSHOT_EVERY:
        raise argparse.ArgumentTypeError(f"must be a multiple of {_WINDOWS // _BATCH}: whole epochs can be counted")
    return steps


def main() -> int:
    names = [case.name for case in CASES]
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--cases", nargs="+", choices=names, default=names, metavar="NAME", help=", ".join(names))
    parser.add_argument("--trials", nargs="+", choices=_TRIALS, default=list(_TRIALS))
    parser.add_argument("--steps", type=_whole_epochs, help="of every training, instead of the trial's own number")
    parser.add_argument("--json", action="store_true", help="print one JSON object a line")
    options = parser.parse_args()
    all_hold = True
    if not options.json:
        print(_HEADING, flush=True)
    with tempfile.TemporaryDirectory() as folder:
        bench = Bench(Path(folder))
        for case in CASES:
            for trial in case.trials:
                if case.name not in options.cases or trial.name not in options.trials:
                    continue
                verdict = bench.judge(case, replace(trial, steps=options.steps or trial.steps))
                all_hold &= verdict.holds
                told = {**asdict(verdict), "holds": verdict.holds}
                print(json.dumps(told) if options.json else describe(verdict), flush=True)
    return 0 if all_hold else 1


if __name__ == "__main__":
    sys.exit(main())
