"""Tables and sentences about jobs. Colors only on a terminal, and no truncation in a pipe."""

from __future__ import annotations

import re
import sys
from collections.abc import Iterable, Iterator, Mapping, Sequence
from datetime import datetime, timezone
from functools import cache

from rich.console import Console, ConsoleOptions, RenderableType
from rich.segment import Segment
from rich.table import Table
from rich.text import Text

from orchestrator import wire
from orchestrator.cli.terminal import wrap
from orchestrator.client.profiles import Profiles
from orchestrator.domain.accounting.step_time import describe_split
from orchestrator.domain.counted import counted, lasting, sized
from orchestrator.domain.job.job import JobState
from orchestrator.domain.terminal import clean, clean_line
from orchestrator.wire.job_views import EventView, JobView, name_replicas

_COLORS = {
    JobState.QUEUED: "yellow",
    JobState.STARTING: "cyan",
    JobState.RUNNING: "blue",
    JobState.RECOVERING: "magenta",
    JobState.SUSPENDED: "yellow",
    JobState.SUCCEEDED: "green",
    JobState.FAILED: "red",
    JobState.CANCELLED: "bright_black",
}


_GAP = 2  # between two columns
_TEXTS = ("REASON", "MEANING")  # columns that a terminal may cut
_SHORT_TEXT = 24  # what is left of them, as long as other columns can be left out before them
_NAMES = 11  # the width of the names of facts
Columns = dict[str, tuple[Text, ...]]


@cache
def console() -> Console:
    width = None if sys.stdout.isatty() else 10_000  # no line breaks in a pipe
    return _CleanConsole(width=width, markup=False, highlight=False, emoji=False)


class _CleanConsole(Console):
    """Cleans all printed text. Colors and cursor movements come only from rich itself."""

    def render(self, renderable: RenderableType, options: ConsoleOptions | None = None) -> Iterator[Segment]:
        for segment in super().render(renderable, options):
            yield segment if segment.control else segment._replace(text=clean(segment.text))


def print_sentence(sentence: str, style: str = "") -> None:
    console().print(_wrapped(sentence, style), soft_wrap=True)


def _wrapped(text: str, style: str = "", indent: str = "  ") -> Text:
    """Wrap text on a terminal. Rich itself would break commands and long words."""
    return Text(wrap(text, console().width, indent) if console().is_terminal else text, style=style)


def print_table(header: Sequence[str], rows: Iterable[Sequence[str | Text]], *, spare: Sequence[str] = ()) -> None:
    """Print one line for each row. A narrow terminal gets no empty column, leaves out columns of `spare` in their
    order, and cuts the last column if that is a text. A text in `spare` is cut to its header at its turn."""
    cells = [[cell if isinstance(cell, Text) else Text(clean_line(cell)) for cell in row] for row in rows]
    if console().is_terminal and cells:
        columns = {name: tuple(row[place] for row in cells) for place, name in enumerate(header)}
        columns = _fit(columns, console().width, spare)
        header, cells = list(columns), [list(row) for row in zip(*columns.values(), strict=True)]
    table = Table(box=None, pad_edge=False, header_style="bold", padding=(0, _GAP, 0, 0))
    for name in header:
        table.add_column(name, no_wrap=True)
    for row in cells:
        table.add_row(*row)
    if console().is_terminal:
        console().print(table)
        return
    for line in console().render_lines(table, pad=False):
        console().print("".join(segment.text for segment in line).rstrip(), soft_wrap=True)


def _fit(columns: Columns, width: int, spare: Sequence[str]) -> Columns:
    """Return the columns that fit into a width, or as many as cannot be left out."""
    shown = {name: cells for name, cells in columns.items() if any(cell.plain for cell in cells)}
    widths = {name: max(len(name), *(cell.cell_len for cell in cells)) for name, cells in shown.items()}
    text = next((name for name in _TEXTS if name in shown), None)
    if text is not None:
        widths[text] = min(widths[text], _SHORT_TEXT)
    for name in spare:
        if sum(widths.values()) + _GAP * (len(widths) - 1) <= width:
            break
        if name == text:
            widths[name] = len(name)
        else:
            widths.pop(name, None)
    if text is not None:
        room = width - sum(each + _GAP for name, each in widths.items() if name != text)
        for cell in shown[text]:
            cell.truncate(max(room, len(text)), overflow="ellipsis")
    return {name: shown[name] for name in widths}


def print_jobs(jobs: Sequence[JobView]) -> None:
    header = ("ID", "PROJECT", "STATE", "STEP", "LOSS", "ATTEMPTS", "RESTARTS", "AGE", "REASON")
    print_table(
        header,
        (
            (
                job.id,
                job.project,
                colored(job.state),
                steps(job),
                "" if job.loss is None else f"{job.loss:.4g}",
                str(job.attempts) if job.attempts > 1 or not console().is_terminal else "",
                str(job.restarts or ""),
                age(job.created_at),
                job.reason,
            )
            for job in jobs
        ),
        spare=("PROJECT", "ATTEMPTS", "RESTARTS", "LOSS", "REASON", "AGE", "STEP"),
    )


def print_job(job: JobView, url: str, newest: Mapping[str, float], wait: wire.insight.WaitView | None) -> None:
    """`newest` has the metrics of the latest steps."""
    facts = {
        "job": job.id,
        "project": job.project,
        "cluster": job.cluster,
        "state": state(job),
        "reason": job.reason,
        "created": f"{moment(job.created_at)}, {age(job.created_at)} ago",
        "waits": " ".join(wait_lines(wait)),
        "finished": moment(job.finished_at) if job.finished_at else "",
        "attempt": str(job.attempt or ""),
        "nodes": nodes(job) if wait is None or wait.nodes is None else f"{wait.nodes} of {job.asked} requested",
        "phase": job.phase or "" if not job.state.terminal else "",
        "generation": str(job.generation or ""),
        "restarts": str(job.restarts) if job.restarts else "",
        "workers": str(job.world_size or ""),
        "step": steps(job),
        "loss": "" if job.loss is None else f"{job.loss:.4f}",
        "speed": speed(job),
        "mfu": f"{newest['mfu']:.1%}" if "mfu" in newest else "",
        "step time": step_time(newest),
        "remaining": duration(job.eta_s) if job.eta_s is not None and not job.state.terminal else "",
        "snapshot": job.newest_snapshot or "",
        "budgets": budgets(job),
        "labels": ", ".join(f"{name}={value}" for name, value in job.labels.items()),
        "page": f"{url}/jobs/{job.id}",
    }
    for name, value in facts.items():
        if value:
            fact = _wrapped(f"{name:<{_NAMES}}{clean_line(value)}", indent=" " * _NAMES)
            fact.stylize("bold", 0, _NAMES)
            console().print(fact, soft_wrap=True)
    if job.failure is not None:
        where = f" on rank {job.failure.rank}" if job.failure.rank is not None else ""
        print_sentence(f"failure    {job.failure.kind_name}{where}: {clean(job.failure.message)}")
        if job.failure.traceback:
            console().print(Text(clean(job.failure.traceback)), soft_wrap=True)


def print_events(job: JobView, events: Sequence[EventView]) -> None:
    named = name_replicas(job, events)
    for event in events:
        console().print(event_line(event, named=named), soft_wrap=True)


def event_line(event: EventView, *, named: bool) -> Text:
    """Render an event. `named` prefixes the replica that reported it, unless the sentence names it."""
    replica, sentence = f"replica {event.replica}", clean_line(event.sentence.rstrip())
    is_named = event.replica is None or re.search(rf"\b{replica}\b", sentence) is not None
    begin = f"{moment(event.at)}  "
    sentence = f"{replica}: {sentence}" if named and not is_named else sentence
    line = _wrapped(f"{begin}{sentence}", indent=" " * len(begin))
    line.stylize("bright_black", 0, len(begin))
    return line


def print_snapshots(snapshots: Iterable[wire.history_views.SnapshotView]) -> None:
    rows = ((s.name, str(s.step), s.state, size(s.size_bytes), moment(s.at)) for s in snapshots)
    print_table(("NAME", "STEP", "STATE", "SIZE", "AT"), rows)


def print_clusters(clusters: Iterable[wire.cluster_views.ClusterView]) -> None:
    print_table(
        ("CLUSTER", "KIND", "SLOTS", "FREE", "RUNNING", "QUEUED", "SUPERVISED BY", "SINCE"),
        (
            (
                cluster.name,
                cluster.kind if cluster.answers else f"{cluster.kind}, does not answer",
                f"{cluster.slots.used}"
                if cluster.slots.total is None
                else f"{cluster.slots.used}/{cluster.slots.total}",
                "" if cluster.slots.free is None else str(cluster.slots.free),
                str(sum(cluster.jobs.get(state, 0) for state in JobState if state.holds_slots)),
                str(cluster.jobs.get(JobState.QUEUED, 0)),
                "nobody" if cluster.lease is None or cluster.lease.expired else cluster.lease.holder,
                "" if cluster.lease is None or cluster.lease.since is None else moment(cluster.lease.since),
            )
            for cluster in clusters
        ),
        spare=("SINCE", "SUPERVISED BY"),
    )


def print_profiles(profiles: Profiles) -> None:
    rows = (
        (one.name, one.url, "yes" if one.token else "", "current" if one.name == profiles.current else "")
        for one in profiles.by_name.values()
    )
    print_table(("PROFILE", "URL", "TOKEN", ""), rows)


def print_nodes(found: Iterable[wire.cluster_views.NodeView]) -> None:
    print_table(
        ("NODE", "CLUSTER", "AVOIDED UNTIL", "FAILURES", "LAST", "REASON"),
        (
            (
                node.name,
                node.cluster,
                moment(node.excluded_until) if node.excluded_until else "",
                str(node.failures),
                f"{age(node.last_at)} ago",
                f"{node.last_kind}: {node.last_sentence}",
            )
            for node in found
        ),
    )


def colored(state: JobState) -> Text:
    return Text(str(state), style=_COLORS[state])


def state(job: JobView) -> str:
    """Render the state, with pending requests."""
    return f"{job.state} ({', '.join(f'{verb} is requested' for verb in job.pending)})" if job.pending else job.state


def nodes(job: JobView) -> str:
    """Render the number of nodes of the job, and the requested number if it differs."""
    if job.nodes is None or job.state.terminal or job.state is JobState.SUSPENDED:
        return f"{job.asked} requested"
    return job.nodes if job.nodes == job.asked else f"{job.nodes} of {job.asked} requested"


def wait_lines(wait: wire.insight.WaitView | None) -> list[str]:
    """Render what a job waits for, with the jobs that hold it."""
    if wait is None:
        return []
    now = datetime.now(timezone.utc)
    held = [f"{each.id} holds {counted(each.devices, 'device')}{_end(each, now)}." for each in wait.holders]
    if wait.other_devices:
        others = "Other jobs" if held else "Jobs of other projects"
        held.append(f"{others} hold {counted(wait.other_devices, 'device')}.")
    return [*wait.sentences, *held]


def _end(holder: wire.insight.HolderView, now: datetime) -> str:
    if holder.ends_by is None:
        return ""
    return f" and ends within about {lasting(max(1.0, (holder.ends_by - now).total_seconds()))}"


def budgets(job: JobView) -> str:
    """Render spent budgets with their limits, and preemptions, which cost nothing."""
    limits = job.spec.supervise.budgets.model_dump()
    rows = ((name, count, limits.get(name)) for name, count in job.spent.items())
    spent = [f"{name} {count}" + ("" if limit is None else f" of {limit}") for name, count, limit in rows]
    free = (
        [] if "preemption" in job.spent or not job.preemptions else [f"{counted(job.preemptions, 'preemption')} (free)"]
    )
    return ", ".join(spent + free)


def steps(job: JobView | wire.array_views.MemberView) -> str:
    if job.step is None:
        return ""
    return f"{job.step}/{job.total_steps}" if job.total_steps else str(job.step)


def speed(job: JobView) -> str:
    return "" if job.tokens_per_s is None else f"{job.tokens_per_s:,.0f} tokens/s"


def step_time(newest: Mapping[str, float]) -> str:
    if "step_s" not in newest:
        return ""
    split = describe_split(newest)
    return f"{newest['step_s']:.3g} s" + (f": {split}" if split else "")


def moment(at: datetime) -> str:
    return at.astimezone().strftime("%Y-%m-%d %H:%M:%S")


def age(since: datetime) -> str:
    return duration((datetime.now(timezone.utc) - since).total_seconds())


def duration(seconds: float) -> str:
    whole = max(0, int(seconds))
    if whole < 120:
        return f"{whole}s"
    if whole < 2 * 3600:
        return f"{whole // 60}m{whole % 60:02}s"
    if whole < 48 * 3600:
        return f"{whole // 3600}h{whole % 3600 // 60:02}m"
    return f"{whole // 86400}d{whole % 86400 // 3600:02}h"


def number(value: float) -> str:
    return f"{value:,.0f}" if value >= 100 else f"{value:.3g}"


def size(size_bytes: int | None) -> str:
    return "" if size_bytes is None else sized(size_bytes)
