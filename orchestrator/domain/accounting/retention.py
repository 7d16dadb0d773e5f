"""How long what ended jobs left behind is kept. Pure: periods, and what they mean at a moment."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime, timedelta
from enum import StrEnum

from orchestrator.domain.counted import counted


class Left(StrEnum):
    """What an ended job leaves behind, each with a period of its own."""

    LOGS = "logs"  # attempts/ of its folder: logs, journals, profiles; and what compilers kept
    METRICS = "metrics"  # what its steps measured; a sum of them stays for the accounts
    EVENTS = "events"  # but those that `why` and the accounts are read from
    FOLDER = "folder"  # all of its folder, snapshots and fence included


@dataclass(frozen=True, slots=True, kw_only=True)
class Keep:
    """Days after a job's end, or after the last use; None: for ever."""

    logs_days: float | None = 90.0
    metrics_days: float | None = 365.0
    events_days: float | None = 730.0
    snapshots_days: float | None = None
    shipped_days: float | None = 30.0  # agents and packed workdirs beside the jobs
    deliveries_days: float | None = 30.0  # what webhooks were told

    def days(self, left: Left) -> float | None:
        match left:
            case Left.LOGS:
                return self.logs_days
            case Left.METRICS:
                return self.metrics_days
            case Left.EVENTS:
                return self.events_days
            case Left.FOLDER:
                return self.snapshots_days


def before(days: float | None, now: datetime) -> datetime | None:
    """What ended earlier may go; None: nothing may."""
    return None if days is None else now - timedelta(days=days)


def last_needed(days: float | None, now: datetime, oldest_live: datetime | None) -> datetime | None:
    """What was last used earlier may go, of what jobs share: no job that lives can have asked for it since."""
    limit = before(days, now)
    if limit is None or oldest_live is None:
        return limit
    return min(limit, oldest_live - timedelta(days=1))  # clocks of file systems differ


def tell_removal(left: Left, days: float) -> str:
    what = {
        Left.LOGS: "its logs and journals are removed",
        Left.METRICS: "what its steps measured is removed, but for the sums",
        Left.EVENTS: "its lesser events are removed",
        Left.FOLDER: "its snapshots and all of its folder are removed",
    }
    return f"{what[left]}, {counted(f'{days:g}', 'day')} after its end"
