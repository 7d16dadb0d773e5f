"""Counter-based randomness: each seed is a function of its purpose, so no generator state has to be saved."""

from __future__ import annotations

import hashlib
import random

import numpy as np
import torch


def seed_of(*purpose: object) -> int:
    """A 63-bit seed from a purpose such as ("dropout", seed, step, microbatch); equal on every machine."""
    digest = hashlib.blake2b(repr(purpose).encode(), digest_size=8).digest()
    return int.from_bytes(digest, "little") >> 1


def seed_all(seed: int) -> None:
    """Seed the global generators of Python, NumPy and torch."""
    random.seed(seed)
    np.random.seed(seed % 2**32)
    torch.manual_seed(seed)
