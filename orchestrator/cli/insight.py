"""`why`: the state of a job explained, and what helps."""

from __future__ import annotations

from orchestrator.cli.common import AsJson, JobId, find_job, print_json, reading
from orchestrator.cli.render import console, moment, wait_lines
from orchestrator.wire.insight import CauseView, WhyView
from trainer.contract.words import cut_traceback

_MOST_LINES = 20  # lines of a traceback


def why(job_id: JobId, as_json: AsJson = False) -> None:
    """Explain the state of a job and what to do next."""
    with reading() as client:
        found = client.why(find_job(client, job_id).id)
    if as_json:
        print_json(found)
    else:
        _print_why(found)


def _print_why(found: WhyView) -> None:
    console().print(f"{found.job}  {found.state}\n{found.verdict}")
    for line in wait_lines(found.wait):
        console().print(line)
    if found.quiet is not None:
        console().print(found.quiet)
    if found.cause is not None:
        _print_cause(found.cause)
        _print_stacks(found.cause, found)
    if found.remedy is not None:
        console().print(f"\nUsual cause: {found.remedy.cause}\nFix: {found.remedy.fix}")
    if found.deeds:
        console().print("\nWhat was done:")
        for action in found.deeds:
            by = f"  [{action.rule}]" if action.rule else ""
            console().print(f"  {moment(action.at)}  {action.sentence}{by}")
    for sentence in found.avoids:
        console().print(f"{sentence[:1].upper()}{sentence[1:]}.")
    console().print(f"\nLost: {found.lost}.\nNext: {found.next}")


def _print_cause(cause: CauseView) -> None:
    failure = cause.failure
    where = f"attempt {cause.attempt}" + ("" if cause.generation is None else f", generation {cause.generation}")
    where += "" if failure.rank is None else f", rank {failure.rank}"
    console().print(f"\nFirst cause, {moment(cause.at)}, {where}: {failure.kind_name}\n  {failure.message}")
    if cause.memory is not None:
        console().print(f"  {cause.memory}")
    if cause.collateral_ranks:
        console().print(f"Other ranks that ended: {', '.join(map(str, cause.collateral_ranks))}")
    if cause.nodes:
        console().print(f"Recorded for: {', '.join(cause.nodes)}")
    traceback = cut_traceback(failure.traceback or "", most_lines=_MOST_LINES)
    for line in traceback.splitlines() or cause.last_lines[-_MOST_LINES:]:
        console().print(f"  {line}")


def _print_stacks(cause: CauseView, found: WhyView) -> None:
    """Print the innermost frames. Only of an ended job does `stacks` show the saved ones."""
    if cause.stacks is not None:
        frames = ", called from ".join(cause.stacks.frames)
        console().print(f"Saved stacks of rank {cause.stacks.rank}: {frames}")
        if found.state.terminal:
            console().print(f"All of them: orchestrator stacks {found.job}")
