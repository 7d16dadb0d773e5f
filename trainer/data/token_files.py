"""Training data as one array of tokens, cut into windows of `seq_len` + 1.

`stdlib`          the .py sources of the running Python's standard library, one byte one token: all files below
                  sysconfig's "stdlib" path in order of their relative path, without folders named in `_NOT_STDLIB`
a folder          every file below it in order of relative path, without hidden ones and without binary ones (a NUL
                  byte in the first 8 KiB), one byte one token
a file            its bytes, memory-mapped
a file *.bin      tokens, memory-mapped, little-endian; `<file>.json` beside it says
                  {"dtype": "uint16" | "uint32", "vocab_size": n}
"""

from __future__ import annotations

import json
import os
import sysconfig
from dataclasses import dataclass
from pathlib import Path
from typing import TypeAlias

import numpy as np
import xxhash
from numpy.typing import NDArray

from trainer.contract.config import TrainerConfig
from trainer.errors import DataError

Tokens: TypeAlias = NDArray[np.uint8] | NDArray[np.uint16] | NDArray[np.uint32]

_NOT_STDLIB = frozenset({"site-packages", "dist-packages", "test", "tests", "idle_test", "__pycache__"})
_Token: TypeAlias = np.dtype[np.uint8] | np.dtype[np.uint16] | np.dtype[np.uint32]
_DTYPES: dict[str, _Token] = {"uint16": np.dtype("<u2"), "uint32": np.dtype("<u4")}
_HASHED_WHOLE_BYTES = 64 * 1024 * 1024
_SAMPLE_BLOCKS, _SAMPLE_BYTES = 256, 4096


@dataclass(frozen=True)
class Data:
    """Tokens and their description. `fingerprint` depends on the data, not on the path."""

    tokens: Tokens  # one-dimensional
    vocab_size: int
    fingerprint: dict[str, object]

    def num_windows(self, seq_len: int) -> int:
        """Windows per epoch. Neighbors share one token: the last target of one is the first input of the next."""
        return (len(self.tokens) - 1) // seq_len

    def read_windows(self, windows_B: NDArray[np.int64], seq_len: int) -> NDArray[np.int64]:
        """The tokens of some windows, [B, seq_len + 1]."""
        offsets_BT = windows_B[:, None] * seq_len + np.arange(seq_len + 1)
        tokens_BT: NDArray[np.int64] = self.tokens[offsets_BT].astype(np.int64)
        return tokens_BT


def open_data(config: TrainerConfig) -> Data:
    """Open `config.data`. Raises DataError if it is missing, unreadable or smaller than one batch."""
    try:
        tokens_N, vocab_size = _open_tokens(config.data)
    except OSError as error:
        raise DataError(
            f"data {config.data!r} cannot be read: {error.strerror}; check the path and its permissions"
        ) from error
    needed = config.global_batch * config.seq_len + 1
    if len(tokens_N) < needed:
        found = f"holds {len(tokens_N)} tokens" if len(tokens_N) else "is empty"
        raise DataError(
            f"data {config.data!r} {found}, one batch of {config.global_batch} x {config.seq_len} needs {needed}: "
            "give more data, or lower global_batch or seq_len"
        )
    return Data(tokens_N, vocab_size, _fingerprint(tokens_N, vocab_size))


def describe_difference(found: dict[str, object], expected: dict[str, object]) -> str | None:
    """What differs between two fingerprints, as text, or None."""
    changed = [name for name in expected if found.get(name) != expected[name]]
    if not changed:
        return None
    return ", ".join(f"{name} was {expected[name]} and is {found.get(name)}" for name in changed)


def _open_tokens(source: str) -> tuple[Tokens, int]:
    if source == "stdlib":
        root = Path(sysconfig.get_path("stdlib"))
        return _read_files(_walk(root, suffix=".py", skip=_NOT_STDLIB)), 256
    path = Path(source)
    if path.is_dir():
        return _read_files([file for file in _walk(path) if not _is_binary(file)]), 256
    if path.suffix == ".bin":
        return _map_tokens(path)
    return _map(path, np.dtype(np.uint8)), 256


def _walk(root: Path, *, suffix: str = "", skip: frozenset[str] = frozenset()) -> list[str]:
    """Regular files below `root` that are not hidden, sorted by the bytes of their relative paths."""
    found: list[str] = []
    folders = [""]
    while folders:
        folder = folders.pop()
        for entry in os.scandir(f"{root}/{folder}"):
            name = f"{folder}{entry.name}"
            if entry.name.startswith("."):
                continue
            if entry.is_dir(follow_symlinks=False):
                folders += [] if entry.name in skip else [f"{name}/"]
            elif entry.name.endswith(suffix) and entry.is_file():
                found.append(name)
    return [f"{root}/{name}" for name in sorted(found)]


def _is_binary(path: str) -> bool:
    with open(path, "rb") as file:  # noqa: PTH123  # of thousands, and each restart waits for it
        return b"\0" in file.read(8192)


def _read_files(paths: list[str]) -> Tokens:
    contents = bytearray()
    for path in paths:
        with open(path, "rb", buffering=0) as file:  # noqa: PTH123
            contents += file.read()
    return np.frombuffer(contents, dtype=np.uint8)


def _map(path: Path, dtype: _Token) -> Tokens:
    size_bytes = path.stat().st_size
    if size_bytes < dtype.itemsize:
        return np.empty(0, dtype=dtype)  # an empty file cannot be mapped
    return np.memmap(path, dtype=dtype, mode="r", shape=(size_bytes // dtype.itemsize,))


def _map_tokens(path: Path) -> tuple[Tokens, int]:
    path.stat()
    header_path = path.with_name(path.name + ".json")
    try:
        header = json.loads(header_path.read_text())
        dtype, vocab_size = _DTYPES[header["dtype"]], int(header["vocab_size"])
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise DataError(
            f"data {str(path)!r} needs {header_path.name!r} beside it with "
            f'{{"dtype": "uint16" or "uint32", "vocab_size": number}}: {type(error).__name__} {error}'
        ) from error
    return _map(path, dtype), vocab_size


def _fingerprint(tokens_N: Tokens, vocab_size: int) -> dict[str, object]:
    """Hash small data in full, and large data by evenly spaced blocks: a start must not read a terabyte."""
    bytes_N = np.ascontiguousarray(tokens_N).view(np.uint8)
    hasher = xxhash.xxh3_64()
    if len(bytes_N) <= _HASHED_WHOLE_BYTES:
        hasher.update(bytes_N.data)
    else:
        for start in np.linspace(0, len(bytes_N) - _SAMPLE_BYTES, _SAMPLE_BLOCKS, dtype=np.int64):
            hasher.update(bytes_N[start : start + _SAMPLE_BYTES].tobytes())
    return {"tokens": len(tokens_N), "vocab_size": vocab_size, "digest": f"xxh3-64:{hasher.hexdigest()}"}
