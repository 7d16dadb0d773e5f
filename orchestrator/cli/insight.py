"""`why`: the state of a job explained, and what helps."""

from __future__ import annotations

from orchestrator.cli.common import AsJson, JobId, find_job, print_json, reading
from orchestrator.cli.render import moment, wait_lines
from orchestrator.cli.terminal import echo, say
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
    say(f"{found.job}  {found.state}\n{found.verdict}")
    for line in wait_lines(found.wait):
        say(line)
    if found.quiet is not None:
        say(found.quiet)
    if found.cause is not None:
        _print_cause(found.cause)
        _print_stacks(found.cause, found)
    if found.remedy is not None:
        say(f"\nUsual cause: {found.remedy.cause}\nFix: {found.remedy.fix}")
    if found.deeds:
        say("\nWhat was done:")
        for action in found.deeds:
            by = f"  [{action.rule}]" if action.rule else ""
            say(f"  {moment(action.at)}  {action.sentence}{by}")
    for sentence in found.avoids:
        say(f"{sentence[:1].upper()}{sentence[1:]}.")
    say(f"\nLost: {found.lost}.\nNext: {found.next}")


def _print_cause(cause: CauseView) -> None:
    failure = cause.failure
    where = f"attempt {cause.attempt}" + ("" if cause.generation is None else f", generation {cause.generation}")
    where += "" if failure.rank is None else f", rank {failure.rank}"
    say(f"\nFirst cause, {moment(cause.at)}, {where}: {failure.kind_name}\n  {failure.message}")
    if cause.memory is not None:
        say(f"  {cause.memory}")
    if cause.collateral_ranks:
        say(f"Other ranks that ended: {', '.join(map(str, cause.collateral_ranks))}")
    if cause.continued:
        say(f"Continued: {cause.continued}")
    if cause.nodes:
        say(f"Recorded for: {', '.join(cause.nodes)}")
    traceback = cut_traceback(failure.traceback or "", most_lines=_MOST_LINES)
    for line in traceback.splitlines() or cause.last_lines[-_MOST_LINES:]:
        echo(f"  {line}")


def _print_stacks(cause: CauseView, found: WhyView) -> None:
    """Print the innermost frames. Only of an ended job does `stacks` show the saved ones."""
    if cause.stacks is not None:
        frames = ", called from ".join(cause.stacks.frames)
        say(f"Saved stacks of rank {cause.stacks.rank}: {frames}")
        if found.state.terminal:
            say(f"All of them: orchestrator stacks {found.job}")
