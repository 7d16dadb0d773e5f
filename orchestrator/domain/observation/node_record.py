"""Node records: which nodes new attempts avoid, and until when. Pure."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta

from orchestrator.domain.job.attempt import AttemptKey
from trainer.contract.failure import FailureKind

# Failures of the machine itself: one is enough. Any other kind needs failures of two attempts.
GRAVE = frozenset({FailureKind.NODE, FailureKind.INFRASTRUCTURE})
_OTHERS_NEEDED = 2
_MOST_DOUBLINGS = 5
# Jobs on one node notice its loss at different times: an elastic group within seconds, Kubernetes in up to five
# minutes, Slurm after its SlurmdTimeout (300 s in slurm.conf(5)) and the wait for late records. Twice the slowest.
INCIDENT_S = 600.0


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeFailure:
    """One attempt's report about a node: the attempt failed there, and the node may be the reason."""

    cluster: str
    node: str
    at: datetime
    key: AttemptKey
    kind: FailureKind
    sentence: str
    cleared_at: datetime | None = None  # when the node's record was last cleared
    began_at: datetime | None = None  # when its attempt was created, if still known

    @property
    def is_of_later_use(self) -> bool:
        """Whether its attempt was created after the clearing, so it is no late report of a cleared incident."""
        return self.cleared_at is not None and self.began_at is not None and self.began_at > self.cleared_at


@dataclass(frozen=True, slots=True, kw_only=True)
class Incident:
    """One incident of a node, with the reports of all attempts about it, oldest first."""

    reports: tuple[NodeFailure, ...]

    @property
    def newest(self) -> NodeFailure:
        return self.reports[-1]

    @property
    def is_cleared(self) -> bool:
        """Whether its first report came before the record was cleared. Later reports do not matter."""
        return _is_old(self.reports)


@dataclass(frozen=True, slots=True, kw_only=True)
class Exclusion:
    node: str
    until: datetime
    sentence: str


def describe(exclusion: Exclusion) -> str:
    """Return a sentence for owners of any job: it does not say what happened on the node, or to whose job."""
    return (
        f"node {exclusion.node} is avoided after a failure until {exclusion.until:%Y-%m-%d %H:%M:%S} UTC, "
        f"or until `orchestrator nodes clear {exclusion.node}`"
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class Partition:
    """A part of a cluster with its own queue, as its scheduler describes it now."""

    name: str
    is_default: bool
    nodes: int
    idle: int
    broken: Mapping[str, str]  # nodes that take no jobs, each with the reason
    gpus: Mapping[str, int]  # by type


def record_begins(now: datetime, *, cooldown_s: float) -> datetime:
    """Return the time before which failures no longer count, because the longest exclusion has ended."""
    return now - timedelta(seconds=cooldown_s * 2**_MOST_DOUBLINGS)


def find_incidents(reports: Iterable[NodeFailure], *, cooldown_s: float) -> list[Incident]:
    """Return the incidents of one node that were not cleared, oldest first.

    Reports within INCIDENT_S of an incident's first one belong to it, whatever their kind: one job may lose the node
    while another cannot start there. A cool-down shorter than INCIDENT_S shortens this window: a node that fails after
    its cool-down was used again and failed again.
    A report of an attempt that was created after the clearing belongs to no cleared incident.
    """
    window = timedelta(seconds=min(INCIDENT_S, cooldown_s))
    groups: list[list[NodeFailure]] = []
    for report in sorted(reports, key=lambda report: (report.at, report.key)):
        if groups and report.at - groups[-1][0].at <= window and not (report.is_of_later_use and _is_old(groups[-1])):
            groups[-1].append(report)
        else:
            groups.append([report])
    incidents = [Incident(reports=tuple(group)) for group in groups]
    return [incident for incident in incidents if not incident.is_cleared]


def _is_old(group: Sequence[NodeFailure]) -> bool:
    """Whether the incident was known when the record was cleared."""
    first = group[0]
    return first.cleared_at is not None and first.at <= first.cleared_at


def exclude(record: Iterable[NodeFailure], *, now: datetime, cooldown_s: float) -> list[Exclusion]:
    """Return the nodes that new attempts avoid now, by name. The cool-down doubles with each further incident.

    A failed switch may mark all nodes. So most backends only prefer other nodes, and start an attempt that has none.
    """
    by_node: defaultdict[str, list[NodeFailure]] = defaultdict(list)
    for failure in record:
        by_node[failure.node].append(failure)
    exclusions = [
        exclusion for node, reports in by_node.items() if (exclusion := _exclusion(node, reports, now, cooldown_s))
    ]
    return sorted(exclusions, key=lambda exclusion: exclusion.node)


def _exclusion(node: str, reports: list[NodeFailure], now: datetime, cooldown_s: float) -> Exclusion | None:
    incidents = find_incidents(reports, cooldown_s=cooldown_s)
    counted = [report for incident in incidents for report in incident.reports]
    is_grave = any(report.kind in GRAVE for report in counted)
    if not is_grave and len({report.key for report in counted}) < _OTHERS_NEEDED:
        return None
    newest = incidents[-1].newest
    until = newest.at + timedelta(seconds=cooldown_s * 2 ** min(len(incidents) - 1, _MOST_DOUBLINGS))
    if until <= now:
        return None
    return Exclusion(node=node, until=until, sentence=f"node {node} is avoided: {newest.sentence}")
