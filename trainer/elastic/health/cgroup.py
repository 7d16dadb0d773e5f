"""Parse the files in which Linux counts memory, and kills by its out-of-memory killer. Pure: opens no file."""

from __future__ import annotations

from pathlib import PurePosixPath

# cgroup v2: Documentation/admin-guide/cgroup-v2.rst, memory.events. It counts the whole subtree, and includes kills
# because the machine ran out of memory. v1: cgroup-v1/memory.rst, memory.oom_control, with `oom_kill` since Linux 4.13.
_V2_FILE, _V1_FILE = "memory.events", "memory.oom_control"


def parse_oom_kills(text: str) -> int | None:
    """The `oom_kill` counter in either file; None when there is none."""
    for line in text.splitlines():
        name, _, value = line.partition(" ")
        if name == "oom_kill" and value.strip().isdecimal():
            return int(value)
    return None


def parse_memory_total(meminfo: str) -> int | None:
    """The machine's memory in bytes, by the text of /proc/meminfo (proc(5))."""
    return _parse_meminfo(meminfo, "MemTotal")


def parse_memory_available(meminfo: str) -> int | None:
    """The bytes that new work can use without swapping, by the same text."""
    return _parse_meminfo(meminfo, "MemAvailable")


def _parse_meminfo(meminfo: str, wanted: str) -> int | None:
    for line in meminfo.splitlines():
        name, _, value = line.partition(":")
        if name == wanted and value.split()[:1] and value.split()[0].isdecimal():
            return int(value.split()[0]) * 1024
    return None


def parse_cached(stat: str) -> int:
    """The bytes of cached files that nothing uses now, by the text of a cgroup's memory.stat; 0 if it has none."""
    for line in stat.splitlines():
        name, _, value = line.partition(" ")
        if name in ("inactive_file", "total_inactive_file") and value.strip().isdecimal():
            return int(value)
    return 0


def find_counters(cgroups: str, mounts: str) -> list[PurePosixPath]:
    """The files that may hold the counter for a process, the more specific first.

    `cgroups` is its /proc/<pid>/cgroup (cgroups(7)), `mounts` its /proc/<pid>/mountinfo (proc(5)).
    """
    v1, v2 = _parse_membership(cgroups)
    found: list[PurePosixPath] = []
    for line in mounts.splitlines():
        fields, _, source = line.partition(" - ")
        columns, kind = fields.split(), source.split()
        if len(columns) < 5 or not kind:
            continue
        root, mount_point = columns[3], columns[4]
        if kind[0] == "cgroup2" and v2 is not None:
            found.append(_below(mount_point, root, v2) / _V2_FILE)
        elif kind[0] == "cgroup" and v1 is not None and "memory" in kind[-1].split(","):
            found.insert(0, _below(mount_point, root, v1) / _V1_FILE)
    return found


def _parse_membership(cgroups: str) -> tuple[str | None, str | None]:
    """The process's path in v1's memory hierarchy and its path in v2's hierarchy."""
    v1 = v2 = None
    for line in cgroups.splitlines():
        number, _, rest = line.partition(":")
        controllers, _, path = rest.partition(":")
        if number == "0" and not controllers:
            v2 = path
        elif "memory" in controllers.split(","):
            v1 = path
    return v1, v2


def _below(mount_point: str, root: str, path: str) -> PurePosixPath:
    """The file path of cgroup `path`. `root` is the cgroup that is mounted: a container sees only its own part."""
    inside = PurePosixPath(path)
    if inside.is_relative_to(root):
        return PurePosixPath(mount_point) / inside.relative_to(root)
    return PurePosixPath(mount_point)
