"""Numbers with their nouns."""

from __future__ import annotations

import pytest

from orchestrator.domain.counted import counted


@pytest.mark.parametrize(
    ("number", "words"),
    [(0, "0 nodes"), (1, "1 node"), ("1", "1 node"), (2, "2 nodes"), (11, "11 nodes"), ("1:2", "1:2 nodes")],
)
def test_only_one_is_singular(number: int | str, words: str) -> None:
    assert counted(number, "node") == words
