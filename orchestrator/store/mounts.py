"""Find the type of the file system of a path, from the text of /proc/self/mountinfo. Pure."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import PurePosixPath

# SQLite's write-ahead log needs locks or shared memory that do not work there across hosts (sqlite.org/wal.html, 1).
NETWORK_TYPES = frozenset(
    {
        *("nfs", "nfs3", "nfs4", "cifs", "smb", "smb2", "smb3", "smbfs", "ncpfs", "afs", "coda", "9p", "virtiofs"),
        *("lustre", "gpfs", "mmfs", "beegfs", "beegfs_nodev", "ceph", "glusterfs", "panfs", "pvfs2", "orangefs"),
        *("wekafs", "daos", "ocfs2", "gfs2", "quobyte", "moosefs"),
        *("fuse.sshfs", "fuse.glusterfs", "fuse.ceph", "fuse.ceph-fuse", "fuse.s3fs", "fuse.gcsfuse", "fuse.rclone"),
        *("fuse.juicefs", "fuse.JuiceFS", "fuse.davfs", "fuse.moosefs", "fuse.mfs", "fuse.dfuse", "fuse.goofys"),
    }
)
_ESCAPE = re.compile(r"\\([0-7]{3})")


@dataclass(frozen=True, slots=True)
class Mount:
    point: str
    type: str


def parse_mountinfo(text: str) -> list[Mount]:
    """Parse /proc/self/mountinfo (proc(5)), in its order. Skips lines of another form."""
    mounts = []
    for line in text.splitlines():
        head, separator, tail = line.partition(" - ")
        fields, rest = head.split(" "), tail.split(" ")
        if separator and len(fields) >= 6 and rest[0]:
            mounts.append(Mount(_ESCAPE.sub(lambda match: chr(int(match[1], 8)), fields[4]), rest[0]))
    return mounts


def file_system_of(path: PurePosixPath, mounts: Sequence[Mount]) -> str | None:
    """Return the type of the innermost mount above an absolute, resolved path. None if there is none.

    Of two mounts at the same point, the later one hides the other.
    """
    above = [mount for mount in mounts if path.is_relative_to(mount.point)]
    if not above:
        return None
    deepest = max(len(PurePosixPath(mount.point).parts) for mount in above)
    return [mount.type for mount in above if len(PurePosixPath(mount.point).parts) == deepest][-1]
