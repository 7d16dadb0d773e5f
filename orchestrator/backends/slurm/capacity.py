"""Read the cluster's nodes, their state and GPUs, and sum them up by partition. Pure."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from contextlib import suppress
from dataclasses import dataclass

from orchestrator.backends.slurm.hostlist import parse_hostlist
from orchestrator.domain.counted import counted
from orchestrator.domain.observation.node_record import Partition
from orchestrator.domain.specs.spec import Placement

SEPARATOR = "\x1f"
_FIELDS = ("NodeList", "Partition", "StateLong", "CPUs", "Memory", "Gres", "Reason")
NODE_FORMAT = ",".join(f"{field}:{SEPARATOR}" for field in _FIELDS)
_GPU = re.compile(r"gpu(?::(?P<type>[^:(]+))?:(?P<count>[0-9]+)")
_BROKEN = ("down", "drained", "draining", "fail", "error", "inval", "unknown", "powering_down", "reboot", "maint")


@dataclass(frozen=True, slots=True, kw_only=True)
class SlurmNode:
    name: str
    partition: str
    is_default: bool  # the partition is the cluster's default
    state: str  # lower case, without flags
    responds: bool
    cpus: int
    memory_mb: int
    gpus: tuple[tuple[str, int], ...]  # (type, count); the type may be empty
    reason: str | None

    @property
    def idle(self) -> bool:
        return self.state == "idle" and self.responds

    @property
    def has_room(self) -> bool:
        """Whether part of the node may be free. Jobs can share a node."""
        return self.state in ("idle", "mixed") and self.responds

    @property
    def broken(self) -> bool:
        return not self.responds or self.state.startswith(_BROKEN)

    @property
    def trouble(self) -> str:
        return f"{self.state}: {self.reason or 'no reason given'}"


def parse_nodes(text: str) -> list[SlurmNode]:
    """Parse `sinfo -h -N -O`. A node appears once per partition. Malformed lines are skipped."""
    found = []
    for line in text.split("\n"):
        values = [
            value.strip() for value in line.rstrip(" ").removesuffix(SEPARATOR).split(SEPARATOR, len(_FIELDS) - 1)
        ]
        if len(values) != len(_FIELDS):
            continue
        name, partition, state, cpus, memory, gres, reason = values
        with suppress(ValueError):
            node = SlurmNode(
                name=name,
                partition=partition.removesuffix("*"),
                is_default=partition.endswith("*"),
                state=state.lower().rstrip("*~#!%$@^-+"),
                responds="*" not in state,
                cpus=int(cpus),
                memory_mb=int(memory.rstrip("+")),
                gpus=parse_gres(gres),
                reason=None if reason in ("none", "") else reason,
            )
            found.append(node)
    return found


def parse_gres(text: str) -> tuple[tuple[str, int], ...]:
    """Return the (type, count) of each kind of GPU in `gpu:a100:4(S:0-1),...`."""
    return tuple((gpu["type"] or "", int(gpu["count"])) for gpu in _GPU.finditer(text))


def in_partition(nodes: Iterable[SlurmNode], partition: str | None) -> list[SlurmNode]:
    """Return the nodes of one or more partitions, separated by commas. None means the default partition."""
    wanted = None if partition is None else set(partition.split(","))
    chosen = {node.name: node for node in nodes if (node.is_default if wanted is None else node.partition in wanted)}
    return list(chosen.values())


def explain_shortage(members: Sequence[SlurmNode], *, needed: int, cpus: int) -> str | None:
    """Explain why a partition can never provide `needed` nodes with `cpus` CPUs. None if it might.

    Broken nodes count, since they may return.
    """
    large = [node for node in members if node.cpus >= cpus]
    if not members or len(large) >= needed:
        return None
    where = f"partition {members[0].partition} has"
    if len(members) < needed:
        return f"needs {counted(needed, 'node')}; {where} {len(members)}"
    largest = f"none: its largest node has {counted(max(node.cpus for node in members), 'CPU')}"
    return f"needs {counted(needed, 'node')} with {counted(cpus, 'CPU')}; {where} {len(large) or largest}"


def choose_avoided(
    avoided: Iterable[str], members: Sequence[SlurmNode], place: Placement, *, needed: int
) -> tuple[str, ...]:
    """Choose which of the `avoided` nodes to exclude, so that `needed` other nodes of the partition remain.

    Slurm refuses a job that excludes an unknown node, a node that the job names, or too many nodes. A broken node does
    not count as remaining, because the job would wait for it. The job may then run on an avoided node.
    """
    known = {node.name: node for node in members}
    if not known:
        return tuple(avoided)
    named, out = _expand(place.nodelist), _expand(place.exclude)
    wanted = [name for name in avoided if name in known and name not in named | out]
    left = known.keys() - out
    most_healthy = max(0, sum(not known[name].broken for name in left) - needed)
    healthy = [name for name in wanted if not known[name].broken][:most_healthy]
    broken = [name for name in wanted if known[name].broken][: max(0, len(left) - needed - len(healthy))]
    return tuple(sorted((*healthy, *broken)))


def _expand(lists: Iterable[str]) -> set[str]:
    return {name for text in lists for name in parse_hostlist(text)}


def summarize(nodes: Iterable[SlurmNode]) -> list[Partition]:
    """Summarize each partition, the default one first."""
    by_name: dict[str, list[SlurmNode]] = {}
    for node in nodes:
        by_name.setdefault(node.partition, []).append(node)
    partitions = [
        Partition(
            name=name,
            is_default=members[0].is_default,
            nodes=len(members),
            idle=sum(node.idle for node in members),
            broken={node.name: node.trouble for node in members if node.broken},
            gpus=_total(members),
        )
        for name, members in by_name.items()
    ]
    return sorted(partitions, key=lambda partition: (not partition.is_default, partition.name))


def _total(nodes: Iterable[SlurmNode]) -> dict[str, int]:
    total: dict[str, int] = {}
    for node in nodes:
        for kind, count in node.gpus:
            total[kind or "gpu"] = total.get(kind or "gpu", 0) + count
    return total
