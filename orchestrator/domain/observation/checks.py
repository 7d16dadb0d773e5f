"""How often a job and its journals are looked at, even if nothing says that they changed."""

from __future__ import annotations

import zlib

CHECK_S = 300.0  # at the latest


def check_after_s(job_id: str) -> float:
    """Return the seconds until the next check: 225 to 300, so that checks of many jobs do not fall into one pass."""
    return CHECK_S * (0.75 + 0.25 * (zlib.crc32(job_id.encode()) % 1000) / 1000)
