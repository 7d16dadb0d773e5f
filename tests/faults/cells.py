"""The tables of faults in docs/failures.md: message, reaction, cost and duration, one table per kind of cluster.

A test injects each fault at default settings and compares the row with what happens, except the seconds. Run the tests
with ORCHESTRATOR_WRITE_FAULTS=1 to write the rows.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path

from deploy.dev.sections import read_section, replace_section
from orchestrator.client import Client

PAGE = Path(__file__).resolve().parents[2] / "docs/failures.md"
CLUSTERS = ("local", "slurm", "kubernetes")
FAULTS = (
    "a worker is killed",
    "a worker hangs",
    "an agent is killed",
    "a node loses its power",
    "the network is cut, and healed after 60 s",
    "the network is cut in one direction",
    "a replica is evicted",
    "the job is preempted",
    "it is deleted by hand",
    "a node is drained",
    "the time limit is reached",
    "the node of the store is lost",
    "a worker runs out of memory",
    "the disk is full",
    "the scheduler is away for an hour",
    "the service is away for an hour",
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Cell:
    """A row of a table.

    `seconds`: from the fault to the next start of workers or the end of the job. None if there is neither, or on a
    virtual clock.
    """

    said: str
    done: str
    costs: str
    seconds: float | None = None

    def agrees(self, other: Cell) -> bool:
        return (self.said, self.done, self.costs) == (other.said, other.done, other.costs)


NEVER = Cell(said="does not happen on one machine", done="", costs="")
ABSENT = {  # faults that a kind of cluster does not have; no test checks these rows
    "local": (
        "the network is cut, and healed after 60 s",
        "the network is cut in one direction",
        "a node is drained",
        "the scheduler is away for an hour",
    ),
    "slurm": (),
    "kubernetes": (),
}
_HEAD = ("fault", "what is said", "what is done", "what it costs", "seconds")
_SHOWN = "snapshot.failed"  # an event that is shown although the job has no failure
_ACTIONS = {  # event -> text in the table
    "restart.in_place": "the workers restart in place",
    "group.shrunk": "the group goes on with fewer nodes",
    "recovery.attempt": "a new attempt",
}


def tell(client: Client, job_id: str, injected_at: datetime, *, names: Mapping[str, str] = {}) -> Cell:
    """Describe what happened after the fault. `names` maps names of this run, such as hosts, to fixed words."""
    job, why = client.job(job_id), client.why(job_id)
    events = [event for event in client.events(job_id) if event.at >= injected_at]
    said = next((event.sentence for event in events if event.kind == _SHOWN), "nothing failed")
    if why.cause is not None:
        failure = why.cause.failure
        rank = "" if failure.rank is None else f", rank {failure.rank}"
        node = f", node {', '.join(why.cause.nodes)}" if why.cause.nodes else ""
        said = f"{failure.kind_name}{rank}{node}: {failure.message}"
    # Each agent reports the event.
    lived = [(event.kind, event.attempt, event.generation) for event in events if event.kind in _ACTIONS]
    done = [_ACTIONS[kind] for kind, _, _ in dict.fromkeys(lived)]
    done += [f"the job ends: {job.state}"] if job.ended else []
    spent = [f"{budget} {count}" for budget, count in job.spent.items()]
    counted = [f"counted as preemption {job.preemptions}"] if job.preemptions else []
    after = [event.at for event in events if event.kind == "generation.started"]
    ends = [event.at for event in events if event.kind == "job.state"][-1:] if job.ended else []
    began = min([*after, *ends], default=None)
    return Cell(
        said=_plain(said, names),
        done=", then ".join(done) or "nothing",
        costs="; ".join([*spent, *counted]) or "nothing",
        seconds=None if began is None else (began - injected_at).total_seconds(),
    )


def check(cluster: str, fault: str, seen: Cell) -> None:
    """Compare the page with `seen`. With ORCHESTRATOR_WRITE_FAULTS=1 update the page."""
    page = PAGE.read_text()
    cells = read(page, cluster)
    if os.environ.get("ORCHESTRATOR_WRITE_FAULTS") == "1":
        PAGE.write_text(replace_section(page, _section(cluster), render({**cells, fault: seen})))
        return
    assert fault in cells, f"docs/failures.md has no row of {cluster} for {fault!r}: {seen}"
    assert seen.agrees(cells[fault]), f"docs/failures.md: {cells[fault]}\nseen: {seen}"


def read(page: str, cluster: str) -> dict[str, Cell]:
    rows = [_split(line) for line in read_section(page, _section(cluster)).splitlines()[2:]]
    return {
        fault: Cell(said=said, done=done, costs=costs, seconds=float(seconds) if seconds else None)
        for fault, said, done, costs, seconds in rows
    }


def render(cells: Mapping[str, Cell]) -> str:
    rows: list[Iterable[str]] = [_HEAD, ["---"] * len(_HEAD)]
    for fault in FAULTS:
        if fault in cells:
            cell = cells[fault]
            rows.append([fault, cell.said, cell.done, cell.costs, _seconds(cell.seconds)])
    return "\n".join(map(_join, rows))


def _section(cluster: str) -> str:
    return f"faults-{cluster}"


def _join(row: Iterable[str]) -> str:
    return "| " + " | ".join(word.replace("|", "\\|") for word in row) + " |"


def _split(line: str) -> list[str]:
    return [each.strip().replace("\\|", "|") for each in re.split(r"(?<!\\)\|", line)[1:-1]]


def _seconds(seconds: float | None) -> str:
    if seconds is None:
        return ""
    return f"{seconds:.{2 if seconds < 1 else 1 if seconds < 10 else 0}f}"


def _plain(text: str, names: Mapping[str, str]) -> str:
    for name, word in sorted(names.items(), key=lambda each: -len(each[0])):
        text = re.sub(rf"(?<!\w){re.escape(name)}(?!\w)", word, text)
    text = re.sub(r"\b\d+(\.\d+)? (s|MB|KiB|MiB)\b", r"… \2", text)
    text = re.sub(r"\b(process|step) \d+\b", r"\1 …", text)
    text = re.sub(r"\bstep-\d+", "step-…", text)
    return " ".join(text.split())
