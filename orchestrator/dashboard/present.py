"""Format values for the pages: times, durations, sizes, numbers."""

from __future__ import annotations

import json
from collections.abc import Sequence
from datetime import datetime

from orchestrator.dashboard.grid import Lag
from orchestrator.dashboard.timeline import Shape
from orchestrator.domain.access.identity import Principal
from orchestrator.domain.access.route_roles import Verdict, find_rule, judge
from orchestrator.domain.accounting.goodput import Bin
from orchestrator.domain.counted import sized

ABSENT = "–"
# Shapes, so that color is never the only difference. Every system has fonts with these characters.
LAG_SHAPES = {Lag.DONE: "✓", Lag.LEVEL: "●", Lag.BEHIND: "◐", Lag.FAR: "▲", Lag.SILENT: "✕", Lag.GONE: "○"}
PIN_SHAPES = {
    Shape.FAILURE: "✕",
    Shape.RECOVERY: "↻",
    Shape.SNAPSHOT: "◆",
    Shape.DAMAGE: "▲",
    Shape.REQUEST: "●",
}
# The patterns of job.html that are drawn over the color of bins that are losses.
BIN_FILLS = {Bin.RE_DONE: "hatch", Bin.RECOVERING: "dots", Bin.STALLED: "lines"}
PIN_NAMES = {
    Shape.FAILURE: "failure",
    Shape.RECOVERY: "recovery",
    Shape.SNAPSHOT: "snapshot",
    Shape.DAMAGE: "failed or damaged snapshot",
    Shape.REQUEST: "user request",
}


def show_duration(seconds: float | None) -> str:
    if seconds is None:
        return ABSENT
    whole = max(0, round(seconds))
    if whole < 60:
        return f"{whole} s"
    if whole < 3600:
        return f"{whole // 60} min {whole % 60:02d} s"
    if whole < 86400:
        return f"{whole // 3600} h {whole % 3600 // 60:02d} min"
    return f"{whole // 86400} d {whole % 86400 // 3600} h"


def show_ago(moment: datetime | None, now: datetime) -> str:
    if moment is None:
        return ABSENT
    seconds = (now - moment).total_seconds()
    if seconds < 5:
        return "just now"
    for limit, size, unit in ((60, 1, "s"), (3600, 60, "min"), (86400, 3600, "h")):
        if seconds < limit:
            return f"{int(seconds // size)} {unit} ago"
    return f"{int(seconds // 86400)} d ago"


def show_time(moment: datetime | None) -> str:
    return ABSENT if moment is None else f"{moment:%Y-%m-%d %H:%M:%S} UTC"


def show_clock(moment: datetime) -> str:
    return f"{moment:%H:%M:%S}"


def show_bytes(size: float | None) -> str:
    return ABSENT if size is None else sized(size)


def show_number(value: float | None) -> str:
    if value is None:
        return ABSENT
    return f"{value:,.0f}" if abs(value) >= 1000 or value == int(value) else f"{value:.4g}"


def show_hours(hours: float) -> str:
    if 0 < hours < 0.01:
        return "<0.01"
    return f"{hours:,.0f}" if hours >= 100 or hours == 0 else f"{hours:.{1 if hours >= 10 else 2}f}"


def show_text(value: object) -> str:
    return ABSENT if value is None or value == "" else str(value)


def show_percent(share: float | None) -> str:
    return ABSENT if share is None else f"{share:.0%}"


def show_json(value: object) -> str:
    return json.dumps(value, indent=2, ensure_ascii=False, default=str)


def list_settings(caller: Principal) -> Sequence[tuple[str, str]]:
    """Return the path and name of each settings page that the caller may open by the rules of the routes."""
    pages = {"/projects": "Projects", "/tokens": "Tokens", "/secrets": "Secrets", "/webhooks": "Webhooks"}
    allowed = {path: judge(find_rule("GET", path), caller) is Verdict.ALLOWED for path in pages}
    return [(path, name) for path, name in pages.items() if allowed[path]]
