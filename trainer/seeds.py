"""Counter-based randomness: every seed is a function of what it is for, so no generator state is ever saved."""

from __future__ import annotations

import hashlib


def seed_of(*purpose: object) -> int:
    """A 63-bit seed from a purpose such as ("dropout", seed, step, microbatch); equal on every machine."""
    digest = hashlib.blake2b(repr(purpose).encode(), digest_size=8).digest()
    return int.from_bytes(digest, "little") >> 1
