"""Let the service open many files, and leave its jobs the usual limit (getrlimit(2), RLIMIT_NOFILE).

The soft limit is often 1024, because select(2) cannot handle higher descriptors. The service uses
poll(2) and epoll(7).
"""

from __future__ import annotations

import resource
from contextlib import suppress

_INITIAL = resource.getrlimit(resource.RLIMIT_NOFILE)


def raise_open_file_limit() -> None:
    """Raise the soft limit of this process to its hard limit."""
    hard = _INITIAL[1]
    with suppress(OSError, ValueError):
        resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))


def restore_open_file_limit(pid: int) -> None:
    """Give another process of this user the limit that this process had at first. Does nothing if it has ended."""
    with suppress(OSError):
        resource.prlimit(pid, resource.RLIMIT_NOFILE, _INITIAL)
