"""The memory of a device, by the name that clusters give it."""

from __future__ import annotations

import re

_UNITS = {"M": 10**6, "G": 10**9, "T": 10**12, "MI": 2**20, "GI": 2**30, "TI": 2**40}
_SIZE = re.compile(r"(\d+(?:\.\d+)?)\s*([MGT]I?)B?", re.IGNORECASE)
_SIZE_IN_NAME = re.compile(r"(\d+)\s?-?gi?b\b")  # "a100-sxm4-80gb", and MIG's "1g.10gb"
# Gigabytes, as the makers' data sheets print them (the device has a little more); first match wins.
DEVICES: tuple[tuple[str, int], ...] = (
    (r"gb300|b300", 288),
    (r"gb200|b200", 180),
    (r"gh200", 96),
    (r"h200", 141),
    (r"h100.?nvl", 94),
    (r"h100", 80),
    (r"h20\b", 96),
    (r"a100", 40),  # or 80: the smaller one if the name does not say
    (r"a800", 80),
    (r"l40|a40|a6000", 48),
    (r"a30|l4\b|a10|4090|3090", 24),
    (r"5090|v100.?32", 32),
    (r"v100|t4\b|p100", 16),
    (r"mi355|mi350", 288),
    (r"mi325", 256),
    (r"mi300a", 128),
    (r"mi300", 192),
    (r"mi250", 64),  # of each of its two dies, which are devices of their own
)


def find_device_bytes(name: str) -> int | None:
    """The memory of a device type as users write it ("h100", "nvidia-a100-80gb"); None if it is unknown."""
    lowered = name.lower()
    match = _SIZE_IN_NAME.search(lowered)
    if match is not None:
        return int(match[1]) * 10**9
    return next((size * 10**9 for pattern, size in DEVICES if re.search(pattern, lowered)), None)


def parse_size(text: str) -> int:
    """Bytes of "80GB", "80 G" or "79.6GiB". Raises ValueError, also for a number without a unit."""
    match = _SIZE.fullmatch(text.strip())
    if match is None or float(match[1]) == 0:
        raise ValueError(f"{text!r} is not a memory size; write it as 80GB or 79.6GiB")
    return int(float(match[1]) * _UNITS[match[2].upper()])
