"""Opening data, and errors of missing data."""

import json

import numpy as np
import pytest

from trainer.contract.config import parse_config
from trainer.data.token_files import describe_difference, open_data
from trainer.errors import DataError


def config(path, **options):
    return parse_config({"data": str(path), "global_batch": 2, "micro_batch": 2, "seq_len": 8, **options})


def test_the_standard_library_is_large_enough_for_a_demonstration():
    data = open_data(parse_config({}))
    assert data.vocab_size == 256
    assert data.num_windows(128) > 20_000
    assert b"import " in bytes(data.tokens[:200_000])
    assert data.fingerprint == open_data(parse_config({})).fingerprint


def test_windows_overlap_by_the_token_that_is_both_target_and_input(tmp_path):
    path = tmp_path / "text"
    path.write_bytes(bytes(range(100)))
    data = open_data(config(path))
    assert data.num_windows(8) == 12
    windows_BT = data.read_windows(np.array([0, 1, 11]), 8)
    assert windows_BT.tolist() == [list(range(9)), list(range(8, 17)), list(range(88, 97))]


def test_a_folder_is_read_in_order_of_relative_paths_without_binaries(tmp_path):
    for name, content in {"b/a.txt": b"second" * 5, "a.txt": b"first!" * 5, "x.bin": b"\0\1", ".hidden": b"no"}.items():
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_bytes(content)
    assert bytes(open_data(config(tmp_path)).tokens) == b"first!" * 5 + b"second" * 5


@pytest.mark.parametrize("dtype", ["uint16", "uint32"])
def test_tokens_are_mapped_as_their_header_says(tmp_path, dtype):
    path = tmp_path / "tokens.bin"
    np.arange(400, 500).astype(dtype).tofile(path)
    (tmp_path / "tokens.bin.json").write_text(json.dumps({"dtype": dtype, "vocab_size": 50257}))
    data = open_data(config(path))
    assert data.vocab_size == 50257
    assert data.read_windows(np.array([1]), 8).tolist() == [list(range(408, 417))]


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (None, "No such file or directory; check the path"),
        (b"", "is empty.*give more data"),
        (b"16 bytes of text", "16"),
    ],
)
def test_missing_empty_and_small_data_are_named(tmp_path, content, message):
    path = tmp_path / "corpus.txt"
    if content is not None:
        path.write_bytes(content)
    with pytest.raises(DataError, match=message) as raised:
        open_data(config(path))
    assert str(path) in str(raised.value)
    assert "\n" not in str(raised.value)


def test_an_empty_folder_is_named(tmp_path):
    with pytest.raises(DataError, match="is empty"):
        open_data(config(tmp_path))


def test_tokens_without_a_header_are_refused(tmp_path):
    (tmp_path / "tokens.bin").write_bytes(bytes(100))
    with pytest.raises(DataError, match=r"tokens\.bin\.json"):
        open_data(config(tmp_path / "tokens.bin"))


def test_a_changed_byte_changes_the_fingerprint(tmp_path):
    path = tmp_path / "text"
    path.write_bytes(bytes(1000))
    before = open_data(config(path)).fingerprint
    path.write_bytes(bytes(999) + b"x")
    after = open_data(config(path)).fingerprint
    assert "digest was" in str(describe_difference(after, before))
    assert describe_difference(before, before) is None
