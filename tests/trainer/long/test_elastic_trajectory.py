"""A killed run goes on upon other ranks, by another strategy, and its loss curve does not show it.

A cross-section of `make trajectories`, which has the whole matrix and 300 steps.
"""

import json
import os
import subprocess
import sys

import pytest

from deploy.dev.trajectories.verdict import Verdict, is_exact, largest_difference
from tests.trainer.harness import ROOT, start_group

pytestmark = pytest.mark.timeout(960)
SECTION = ["2→2 ddp", "4→4 hsdp", "2→3", "fsdp 2→1", "naive 2→1"]


@pytest.fixture(scope="module")
def verdicts() -> dict[str, dict]:
    flags = ["--json", "--steps", "60", "--trials", "exact", "fp32", "--cases", *SECTION]
    command = [sys.executable, "-m", "deploy.dev.trajectories", *flags]
    variables = {**os.environ, "OMP_NUM_THREADS": "1"}
    done = subprocess.run(command, cwd=ROOT, env=variables, capture_output=True, text=True, timeout=900, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    return {verdict["case"]: verdict for verdict in map(json.loads, done.stdout.splitlines())}


@pytest.mark.parametrize("case", ["2→2 ddp", "4→4 hsdp"], ids=["two copies", "two copies of two shards"])
def test_the_same_ranks_repeat_the_curve_to_the_last_bit(verdicts, case):
    assert verdicts[case]["largest"] == 0.0


def test_three_ranks_of_which_two_come_short_continue_what_two_began(verdicts):
    assert verdicts["2→3"]["largest"] <= 1e-5


def test_one_rank_continues_what_two_shards_began(verdicts):
    assert verdicts["fsdp 2→1"]["largest"] <= 1e-5


def test_every_sample_is_learned_from_as_often_as_any_other(verdicts):
    assert [verdicts[case]["samples_exact"] for case in SECTION] == [True, True, True, True, False]


def test_the_loss_falls_by_more_than_a_nat(verdicts):
    assert all(verdict["first_loss"] - verdict["last_loss"] > 1 for verdict in verdicts.values())


def test_a_batch_per_rank_would_be_found_out(verdicts):
    """The comparison can fail: the usual trainer, whose batch shrinks with the ranks, does not pass it."""
    assert verdicts["naive 2→1"]["largest"] > 1e-3


def test_a_restore_upon_other_ranks_is_told(tmp_path):
    with start_group(tmp_path, 2, steps=1) as group:
        assert group.wait() == [0, 0], group.outputs()
    with start_group(tmp_path, 1, generation=2, steps=2) as group:
        assert group.wait() == [0], group.outputs()
    assert "(world size 2 → 1)" in group.events("restored")[0]["sentence"]


def test_a_verdict_wants_a_near_curve_that_falls_on_every_sample():
    good = {"case": "2→1", "trial": "fp32", "compared": 50, "limit": 1e-5, "is_naive": False}
    good |= {"largest": 9e-6, "first_loss": 5.5, "last_loss": 3.0, "samples_exact": True}
    assert Verdict(**good).holds
    for wrong in ({"largest": 2e-5}, {"largest": float("nan")}, {"last_loss": 4.9}, {"samples_exact": False}):
        assert not Verdict(**{**good, **wrong}).holds
    assert not Verdict(**{**good, "is_naive": True}).holds


def test_a_curve_is_compared_step_by_step_after_the_restore():
    reference = {1: 5.0, 2: 4.0, 3: 2.0}
    assert largest_difference({1: 9.0, 2: 4.0, 3: 2.5}, reference, after=1) == 0.25
    with pytest.raises(KeyError):
        largest_difference({1: 5.0, 2: 4.0}, reference, after=1)


def test_a_sample_that_comes_twice_or_never_is_noticed():
    windows = ["a", "b", "c", "c"]
    assert is_exact(["c", "a", "c", "b"] * 2, windows)
    assert not is_exact(["c", "a", "b", "b"], windows)
    assert not is_exact(["c", "a", "c"], windows)
