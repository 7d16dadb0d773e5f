"""The order of samples: a function of (seed, epoch, position) alone, in constant memory.

Position p of the endless stream is window `permutation[p % num_windows]` of epoch `p // num_windows`: each window comes
exactly once per epoch, and nothing depends on ranks or on what was drawn before. The permutation is a Feistel cipher
with cycle walking (Black and Rogaway, "Ciphers with Arbitrary Finite Domains", CT-RSA 2002).
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from trainer.seeds import seed_of

_ROUNDS = 6


def draw_windows(*, first: int, count: int, num_windows: int, seed: int) -> NDArray[np.int64]:
    """The windows at stream positions first .. first + count - 1, in order."""
    positions_N = np.arange(first, first + count, dtype=np.int64)
    epochs_N, places_N = np.divmod(positions_N, num_windows)
    windows_N = np.empty(count, dtype=np.int64)
    for epoch in sorted(set(epochs_N.tolist())):
        chosen_N = epochs_N == epoch
        windows_N[chosen_N] = permute(places_N[chosen_N], size=num_windows, key=seed_of("order", seed, epoch))
    return windows_N


def permute(index_N: NDArray[np.int64], *, size: int, key: int) -> NDArray[np.int64]:
    """Send each index below `size` to its place in the permutation that `key` selects."""
    half_bits = max(1, ((size - 1).bit_length() + 1) // 2)
    round_keys = np.array([seed_of(key, turn) for turn in range(_ROUNDS)], dtype=np.uint64)
    value_N = _encrypt(index_N.astype(np.uint64), half_bits, round_keys)
    while (outside_N := value_N >= np.uint64(size)).any():
        value_N[outside_N] = _encrypt(value_N[outside_N], half_bits, round_keys)
    return value_N.astype(np.int64)


def _encrypt(value_N: NDArray[np.uint64], half_bits: int, round_keys: NDArray[np.uint64]) -> NDArray[np.uint64]:
    shift, mask = np.uint64(half_bits), np.uint64((1 << half_bits) - 1)
    left_N, right_N = value_N >> shift, value_N & mask
    for round_key in round_keys:
        left_N, right_N = right_N, left_N ^ (_mix(right_N ^ round_key) & mask)
    return (left_N << shift) | right_N


def _mix(value_N: NDArray[np.uint64]) -> NDArray[np.uint64]:
    """The finaliser of SplitMix64 (Steele, Lea and Flood, OOPSLA 2014)."""
    value_N = (value_N ^ (value_N >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    value_N = (value_N ^ (value_N >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return value_N ^ (value_N >> np.uint64(31))
