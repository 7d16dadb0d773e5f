"""Let the service open many files, and leave its jobs the usual limit (getrlimit(2), RLIMIT_NOFILE).

The soft limit is often 1024, because programs that call select(2) can use no higher descriptor. The service uses
poll(2) and epoll(7).
"""

from __future__ import annotations

import resource
from contextlib import suppress

_USUAL = resource.getrlimit(resource.RLIMIT_NOFILE)


def allow_many() -> None:
    """Raise the soft limit of this process to its hard limit."""
    hard = _USUAL[1]
    with suppress(OSError, ValueError):
        resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))


def restore_limit(pid: int) -> None:
    """Give another process of this user the limit that this process had at first. Does nothing if it has ended."""
    with suppress(OSError):
        resource.prlimit(pid, resource.RLIMIT_NOFILE, _USUAL)
