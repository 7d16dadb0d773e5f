"""How long the data of ended jobs is kept. Pure."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime, timedelta
from enum import StrEnum

from orchestrator.domain.counted import counted


class DataKind(StrEnum):
    """Kinds of data of an ended job. Each has its own period."""

    LOGS = "logs"  # logs, journals and profiles (attempts/ in its folder), and compiler caches
    METRICS = "metrics"  # metrics of its steps; their sums are kept for goodput
    EVENTS = "events"  # all but those that `why` and goodput are read from
    FOLDER = "folder"  # its whole folder, including snapshots and fence


@dataclass(frozen=True, slots=True, kw_only=True)
class Retention:
    """Days after a job's end, or after the last use. None means forever."""

    logs_days: float | None = 90.0
    metrics_days: float | None = 365.0
    events_days: float | None = 730.0
    snapshots_days: float | None = None
    shipped_days: float | None = 30.0  # agents and packed workdirs, which jobs share
    deliveries_days: float | None = 30.0  # messages to webhooks

    def days(self, kind: DataKind) -> float | None:
        match kind:
            case DataKind.LOGS:
                return self.logs_days
            case DataKind.METRICS:
                return self.metrics_days
            case DataKind.EVENTS:
                return self.events_days
            case DataKind.FOLDER:
                return self.snapshots_days


def before(days: float | None, now: datetime) -> datetime | None:
    """Return the time before which a job must have ended for its data to be removed. None means never."""
    return None if days is None else now - timedelta(days=days)


def last_needed(days: float | None, now: datetime, oldest_live: datetime | None) -> datetime | None:
    """Return the time before which shared data must have been used last to be removed. No live job needs it then."""
    limit = before(days, now)
    if limit is None or oldest_live is None:
        return limit
    return min(limit, oldest_live - timedelta(days=1))  # the clocks of file systems differ


def tell_removal(kind: DataKind, days: float) -> str:
    what = {
        DataKind.LOGS: "its logs and journals are removed",
        DataKind.METRICS: "its metrics are removed except for their sums",
        DataKind.EVENTS: "its less important events are removed",
        DataKind.FOLDER: "its whole folder with its snapshots is removed",
    }
    return f"{what[kind]}, {counted(f'{days:g}', 'day')} after its end"
