"""A barrier names an absent rank after a timeout, and knows a lost one at once."""

from pathlib import Path

import pytest

from tests.trainer.harness import start_group

ENTRY = (str(Path(__file__).with_name("barrier_entry.py")),)


@pytest.mark.long
def test_an_evaluation_names_an_absent_rank(tmp_path):
    with start_group(tmp_path, 2, entry=ENTRY) as group:
        assert group.wait() == [0, 0], group.outputs()
        printed = group.processes[0].communicate(timeout=300)[0]
    lines = [line for line in printed.splitlines() if not line.startswith("[Gloo] ")]  # torch 2.8 reports connections
    assert lines[0] == "met"
    assert "not all ranks came to the evaluation after step 7 within 0.5 s: [Rank 0]: Ranks 1 failed" in printed


def test_a_rank_that_dies_before_a_barrier_is_a_lost_peer(tmp_path):
    with start_group(tmp_path, 2, entry=(*ENTRY, "dies")) as group:
        assert group.wait() == [0, 0], group.outputs()
        printed = group.processes[0].communicate(timeout=300)[0]
    assert "True Connection closed by peer before the evaluation after step 7" in printed
