"""The claim, a file by which one submission owns an attempt. It is created atomically. Standard library only."""

from __future__ import annotations

import errno
import os
from pathlib import Path

from trainer.contract import layout
from trainer.elastic.records.files import read_small, write_temporary

# Errors of link(2) on file systems without hard links.
_NO_HARD_LINKS = {errno.EPERM, errno.ENOTSUP, errno.EOPNOTSUPP, errno.EMLINK, errno.ENOSYS}
LONGEST_BYTES = 16 << 20  # of a file with the names of a hundred thousand nodes
_CHAIN = 8  # the most claims that may be empty


class ClaimRefused(Exception):
    """Another submission holds the claim of this attempt."""


def claim_attempt(attempt_dir: Path, token: str) -> None:
    """Claim the attempt for `token`. Idempotent: every replica of one submission succeeds. Raises ClaimRefused.

    If a claim is empty, because its writer's machine crashed, the next of `claim-2`, `claim-3` and so on decides. Each
    is created exclusively, so that only one submission can win.
    """
    if not token:
        raise ValueError("the claim's token is empty")
    attempt_dir.mkdir(parents=True, exist_ok=True)
    for number in range(1, _CHAIN + 1):
        name = layout.CLAIM if number == 1 else f"{layout.CLAIM}-{number}"
        holder = create_once(attempt_dir / name, token)
        if holder == token:
            return
        if holder:
            raise ClaimRefused(f"{attempt_dir / name} is held by another submission")
    raise ClaimRefused(f"{attempt_dir} has {_CHAIN} empty claims: remove them")


def create_once(path: Path, content: str) -> str:
    """Create the file unless it exists, and return what it contains."""
    if not path.exists():
        temporary = write_temporary(path, content.encode())
        try:
            _link(temporary, path, content)
        finally:
            temporary.unlink()
    held = read_small(path, LONGEST_BYTES)
    if held is None:
        raise FileExistsError(errno.EEXIST, "no regular file, or too large: remove it", str(path))
    return held.strip()


def _link(temporary: Path, path: Path, content: str) -> None:
    try:
        os.link(temporary, path)
    except FileExistsError:
        return
    except OSError as error:
        if error.errno not in _NO_HARD_LINKS:
            raise
        _create(path, content)


def _create(path: Path, content: str) -> None:
    try:
        descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o644)
    except FileExistsError:
        return
    try:
        os.write(descriptor, content.encode())
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
