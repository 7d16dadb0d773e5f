"""Each rank of a script reads what it has saved, also where that differs from what others have saved."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from tests.trainer.harness import start_group
from trainer.script.fingerprint import _COLUMNS, _summarize, fingerprint
from trainer.snapshot.whole import read_metadata

ENTRY = str(Path(__file__).with_name("rank_parts_entry.py"))


@pytest.mark.long
def test_each_rank_reads_its_own_part(tmp_path: Path) -> None:
    with start_group(tmp_path / "job", 2, entry=(ENTRY, str(tmp_path / "snapshot"))) as group:
        assert group.wait(100) == [0, 0], group.outputs()
        first, second = (process.communicate(timeout=100)[0].splitlines()[-1] for process in group.processes)
    assert first == second, "a rank that saved nothing reads what the first has saved"
    assert first.endswith("[0.1], [1, {'last': 1}]]")
    names = read_metadata(tmp_path / "snapshot").state_dict_metadata
    assert {"model.shared", "model.expert", "rank-1.model.expert"} <= names.keys()
    assert "rank-1.model.shared" not in names, "what is equal is saved once"


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float64, torch.bool, torch.complex64])
def test_sums_of_bits_notice_another_value(dtype: torch.dtype) -> None:
    ours = torch.ones(3, 5000, dtype=dtype)
    for place in ((0, 0), (2, 4999)):
        theirs = ours.clone()
        theirs[place] = 0
        assert fingerprint(list(_summarize(ours))) != fingerprint(list(_summarize(theirs)))
        assert fingerprint(ours) != fingerprint(theirs)
    assert fingerprint(ours) == fingerprint(ours.clone())


@pytest.mark.parametrize("rows", [2, 7, 1000])
def test_sums_of_bits_notice_exchanged_values(rows: int) -> None:
    """Rows of the table that it sums, columns of that table, and single values."""
    ours = torch.randn(rows, _COLUMNS, generator=torch.Generator().manual_seed(0))
    for order in (torch.arange(rows).roll(1), torch.arange(rows).flip(0)):
        assert fingerprint(list(_summarize(ours))) != fingerprint(list(_summarize(ours[order])))
    columns = ours.roll(1, dims=1)
    assert fingerprint(list(_summarize(ours))) != fingerprint(list(_summarize(columns)))
    single = ours.clone()
    single[0, 5], single[1, 5] = ours[1, 5], ours[0, 5]
    assert fingerprint(list(_summarize(ours))) != fingerprint(list(_summarize(single)))
