"""Numbers with nouns and units."""

from __future__ import annotations

import pytest

from orchestrator.domain.counted import counted, lasting, sized


@pytest.mark.parametrize(
    ("number", "words"),
    [(0, "0 nodes"), (1, "1 node"), ("1", "1 node"), (2, "2 nodes"), (11, "11 nodes"), ("1:2", "1:2 nodes")],
)
def test_only_one_is_singular(number: int | str, words: str) -> None:
    assert counted(number, "node") == words


@pytest.mark.parametrize(
    ("seconds", "words"),
    [(-3, "0 s"), (0.9, "0 s"), (119, "119 s"), (120, "2 min"), (7199, "119 min"), (7200, "2 h"), (1e6, "277 h")],
)
def test_a_time_is_rounded_down_in_the_largest_unit_of_which_there_are_two(seconds: float, words: str) -> None:
    assert lasting(seconds) == words


@pytest.mark.parametrize(
    ("size_bytes", "words"),
    [
        (0, "0 B"),
        (999, "999 B"),
        (1000, "1 kB"),
        (999_499, "999 kB"),
        (999_500, "1 MB"),
        (3_840_000_000, "3.84 GB"),
        (5.2e15, "5.2e+03 TB"),
    ],
)
def test_a_size_has_three_digits(size_bytes: float, words: str) -> None:
    assert sized(size_bytes) == words
