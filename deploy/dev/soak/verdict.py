"""Check what must hold after all faults, from the run directories and the service's answers."""

from __future__ import annotations

import contextlib
import io
import json
import math
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import Any

from deploy.dev.soak.faults import DISK_FULL, InjectedFault
from orchestrator.domain.accounting.goodput import Bin
from orchestrator.wire.insight import GoodputView, SharesView
from orchestrator.wire.job_views import JobView
from trainer.contract import layout
from trainer.contract.clock import parse_time
from trainer.contract.fence import Term, parse_term
from trainer.contract.manifest import parse_snapshot_name
from trainer.snapshot.__main__ import main as check_snapshot

REPLAY_TOLERANCE = 1e-3  # nats, between the losses of a repeated step, perhaps at another world size

_ROUNDING_S = 1e-3


@dataclass(frozen=True)
class Step:
    at: float
    term: Term
    step: int
    loss: float | None


@dataclass(frozen=True)
class Commit:
    at: float
    term: Term
    step: int
    name: str


class Journals:
    """The journals of the agents and workers of one job."""

    def __init__(self, job_dir: Path) -> None:
        self.job_dir = job_dir
        self.steps: list[Step] = []
        self.commits: list[Commit] = []
        self.quarantined: set[str] = set()
        for journal in sorted(job_dir.glob("attempts/*/replica-*/*/*.jsonl")):
            attempt = int(journal.parts[-4])
            for reported in _lines(journal):
                self._take(reported, attempt, journal.name)
        self.steps.sort(key=lambda step: step.at)

    def _take(self, reported: dict[str, Any], attempt: int, journal: str) -> None:
        at, term = parse_time(reported["at"]).timestamp(), Term(attempt, reported["generation"])
        if journal == layout.PROGRESS and reported.get("rank") == 0 and reported.get("metrics"):
            self.steps.append(Step(at, term, reported["step"], reported["metrics"].get("loss")))
        if journal != layout.EVENTS:
            return
        evidence = reported.get("evidence", {})
        if reported["kind"] == "snapshot.committed":
            name = parse_snapshot_name(evidence["name"])
            assert name is not None
            self.commits.append(Commit(at, name.term, name.step, str(name)))
        if reported["kind"] == "snapshot.quarantined":
            self.quarantined.add(evidence["name"])


def judge(root: Path, jobs: Iterable[JobView], injected: list[InjectedFault]) -> Iterator[str]:
    """Yield all problems as sentences."""
    for job in jobs:
        journals = Journals(root / job.id)
        hits = sum(job.id in fault.agents_of for fault in injected)
        if job.state.value != "SUCCEEDED":
            yield f"{job.id} is {job.state}: {job.reason}"
        elif job.step != job.total_steps:
            yield f"{job.id} succeeded with step {job.step} of {job.total_steps}"
        missing = set(range(1, (job.step or 0) + 1)) - {step.step for step in journals.steps}
        if missing and not any(fault.kind == DISK_FULL and job.id in fault.agents_of for fault in injected):
            yield f"{job.id} did not report steps {sorted(missing)[:10]}"
        if job.attempts > hits + 1:
            yield f"{job.id} has {job.attempts} attempts, but {hits} faults hit its agents"
        yield from _double_starts(journals)
        yield from _lost_steps(journals)
        yield from _damaged(journals)
        yield from _other_losses(journals)


def wrong_ledgers(ledgers: Iterable[tuple[str, GoodputView]]) -> Iterator[str]:
    """Check that the bins of a job add up to its stretches, which have no gap."""
    for job_id, found in ledgers:
        lived_s = sum((one.until - one.since).total_seconds() * one.devices for one in found.stretches)
        reported_s = sum(found.bins.values())
        if not math.isclose(reported_s, found.device_seconds, abs_tol=_ROUNDING_S):
            yield f"{job_id}: the bins add up to {reported_s:.6f} of {found.device_seconds:.6f} device-seconds"
        if not math.isclose(lived_s, found.device_seconds, abs_tol=_ROUNDING_S):
            yield f"{job_id}: the stretches add up to {lived_s:.6f} of {found.device_seconds:.6f} device-seconds"
        if any(one.until != two.since for one, two in pairwise(found.stretches)):
            yield f"{job_id}: its stretches have a gap"
        restarts_s = sum(each.recovering_device_seconds + each.re_done_device_seconds for each in found.restarts)
        lost_s = found.bins[Bin.RECOVERING] + found.bins[Bin.RE_DONE]
        if not math.isclose(restarts_s, lost_s, abs_tol=_ROUNDING_S):
            yield f"{job_id}: its restarts add up to {restarts_s:.6f} of {lost_s:.6f} device-seconds"


def wrong_shares(ledgers: Mapping[str, GoodputView], groupings: Iterable[SharesView]) -> Iterator[str]:
    """Check that the shares of each grouping add up to the ledgers."""
    whole_s = sum(found.device_seconds for found in ledgers.values())
    for found in groupings:
        shares_s = sum(share.device_seconds for share in found.items)
        if not math.isclose(shares_s, whole_s, abs_tol=_ROUNDING_S * (1 + len(ledgers))):
            yield f"by {found.by} the shares add up to {shares_s:.6f} of {whole_s:.6f} device-seconds"


def _double_starts(journals: Journals) -> Iterator[str]:
    for attempt_dir in sorted(journals.job_dir.glob("attempts/*")):
        lives = sorted(attempt_dir.glob("replica-*/*/" + layout.AGENT))
        claims = {json.loads(life.read_text())["claim"] for life in lives}
        replicas = [life.parts[-3] for life in lives]
        if len(claims) > 1 or len(replicas) != len(set(replicas)):
            yield f"attempt {attempt_dir.name} of {journals.job_dir.name} was started twice: {lives}"


def _lost_steps(journals: Journals) -> Iterator[str]:
    """Check that every term begins at the newest snapshot that was committed before it, or at a later one."""
    for file in sorted(layout.fence_dir(journals.job_dir).iterdir()):
        term, text = parse_term(file.name), file.read_text()
        if term is None or not text:
            continue
        base, begun = json.loads(text)["base_step"], file.stat().st_mtime
        if base is None:
            continue
        before = [one for one in journals.commits if one.at < begun and one.term < term]
        newest = max((one.step for one in before if one.name not in journals.quarantined), default=0)
        if base < newest:
            yield f"{journals.job_dir.name}: {file.name} began at step {base}, step {newest} was committed before"


def _damaged(journals: Journals) -> Iterator[str]:
    for folder in sorted(layout.snapshots_dir(journals.job_dir).glob("step-*")):
        if parse_snapshot_name(folder.name) is None or not (folder / layout.MANIFEST).exists():
            continue
        words = io.StringIO()
        with contextlib.redirect_stdout(words), contextlib.redirect_stderr(words):
            status = check_snapshot(["verify", str(folder)])
        if status != 0:
            yield f"{folder.name} of {journals.job_dir.name} does not verify: {words.getvalue()}"


def _other_losses(journals: Journals) -> Iterator[str]:
    """Check that repeated steps have the same loss."""
    losses: dict[int, list[float]] = defaultdict(list)
    for step in journals.steps:
        if step.loss is not None:
            losses[step.step].append(step.loss)
    spread, number = max(((max(found) - min(found), number) for number, found in losses.items()), default=(0.0, 0))
    if spread > REPLAY_TOLERANCE:
        yield f"{journals.job_dir.name}: the losses of step {number} differ by {spread:.3g}"


def _lines(journal: Path) -> Iterator[dict[str, Any]]:
    for line in journal.read_bytes().splitlines():
        with contextlib.suppress(ValueError):  # a line cut off by a kill or a full disk
            reported = json.loads(line)
            if isinstance(reported, dict):
                yield reported
