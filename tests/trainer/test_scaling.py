"""Advice on the learning rate after the batch size has changed."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from trainer.contract.config import TrainerConfig
from trainer.loop.batch_change import advise_batch

SAVED = {"global_batch": 64, "seq_len": 128, "learning_rate": 1e-3}


def advise(saved=SAVED, **now):
    return advise_batch(saved, TrainerConfig(**{**SAVED, **now}))


def test_an_equal_batch_is_not_reported():
    assert advise() is None
    assert advise(learning_rate=0.5) is None, "a changed rate alone is not reported"
    assert advise(global_batch=128, seq_len=64) is None


@pytest.mark.parametrize("saved", [{}, {"global_batch": "many", "seq_len": 128}, {"global_batch": 64}])
def test_a_value_that_an_older_snapshot_lacks_is_no_change(saved):
    assert advise(saved) is None


def test_an_unchanged_rate_is_reported_with_the_expected_one():
    assert advise(global_batch=256) == (
        "a step's batch was 64 samples and is 256, but the learning rate is still 0.001: "
        "by the square root it would be 0.002, in proportion 0.004"
    )


def test_an_unexpected_rate_is_reported():
    assert "but the learning rate was 0.001 and is 0.1: " in advise(global_batch=128, learning_rate=0.1)


def test_longer_sequences_are_a_larger_batch_too():
    assert advise(seq_len=256).startswith("a step's batch was 8192 tokens and is 16384, but ")


def test_no_rate_is_computed_for_a_users_own_optimizer():
    advice = advise_batch(SAVED, TrainerConfig(task="mine:task", global_batch=8), has_own_rate=True)
    assert advice == "a step's batch was 64 samples and is 8: does the learning rate still fit?"


@given(st.integers(1, 4096).filter(lambda size: size != 64), st.floats(0.5, 1.0))
def test_every_rate_between_square_root_and_proportional_fits(batch, power):
    assert "follows" in advise(global_batch=batch, learning_rate=1e-3 * (batch / 64) ** power)
