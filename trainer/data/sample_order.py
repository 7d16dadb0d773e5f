"""The order of samples as a function of (seed, epoch, position), in constant memory.

Position p of the endless stream is window `permutation[p % num_windows]` of epoch `p // num_windows`: each window comes
exactly once per epoch, and nothing depends on ranks or on what was drawn before. The permutation is a Feistel cipher
with cycle walking (Black and Rogaway, "Ciphers with Arbitrary Finite Domains", CT-RSA 2002).
"""

from __future__ import annotations

from functools import lru_cache

import numpy as np
from numpy.typing import NDArray

from trainer.data.seeds import seed_of

_ROUNDS = 6
_64_BITS = 2**64 - 1


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
    """Map each index below `size` to its place in the permutation that `key` selects.

    One by one in Python: for the few indices of a microbatch, NumPy takes several times as long.
    """
    half_bits = max(1, ((size - 1).bit_length() + 1) // 2)
    round_keys = _round_keys(key)
    return np.array([_walk(index, size, half_bits, round_keys) for index in index_N.tolist()], dtype=np.int64)


@lru_cache(maxsize=8)
def _round_keys(key: int) -> tuple[int, ...]:
    return tuple(seed_of(key, turn) for turn in range(_ROUNDS))


def _walk(value: int, size: int, half_bits: int, round_keys: tuple[int, ...]) -> int:
    """Encrypt until the value is below `size` (cycle walking)."""
    mask = (1 << half_bits) - 1
    while True:
        left, right = value >> half_bits, value & mask
        for round_key in round_keys:
            left, right = right, left ^ (_mix(right ^ round_key) & mask)
        value = (left << half_bits) | right
        if value < size:
            return value


def _mix(value: int) -> int:
    """The finalizer of SplitMix64 (Steele, Lea and Flood, OOPSLA 2014)."""
    value = ((value ^ (value >> 30)) * 0xBF58476D1CE4E5B9) & _64_BITS
    value = ((value ^ (value >> 27)) * 0x94D049BB133111EB) & _64_BITS
    return value ^ (value >> 31)
