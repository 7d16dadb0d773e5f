"""Print a plan: the launch, whether it fits, the queue, and differences from another job."""

from __future__ import annotations

import shlex

from rich.text import Text

from orchestrator.cli.render import console, duration, print_sentence, size
from orchestrator.domain.counted import counted
from orchestrator.domain.job.native_request import PROCESSES
from orchestrator.wire.plans import AgainstView, MemoryView, OutlookView, PlanView


def print_plan(plan: PlanView) -> None:
    out = console()
    for warning in plan.warnings:
        print_sentence(f"warning: {warning}", "yellow")
    if plan.memory is not None:
        print_memory(plan.memory)
    for rung in plan.rungs:
        fits = {True: "fits", False: "does not fit", None: "the device is not known"}[rung.fits]
        mark = "*" if rung.name == plan.fitting else " "
        out.print(Text(f" {mark} {rung.name}: {size(rung.total_bytes)}, {fits}"), soft_wrap=True)
    if plan.outlook is not None:
        print_outlook(plan.outlook)
    if plan.restores is not None:
        out.print(Text(f"starts from {plan.restores}"), soft_wrap=True)
    out.print(f"rendezvous {plan.rendezvous_id} at {plan.rendezvous_endpoint}", soft_wrap=True)
    for replica in plan.replicas if plan.native_kind != PROCESSES else ():  # the native request has the same commands
        out.print(Text(f"\nreplica {replica.replica}", style="bold"))
        out.print(Text(shlex.join(replica.command)), soft_wrap=True)
        for name, value in replica.env.items():
            out.print(Text(f"  {name}={value}"), soft_wrap=True)
    out.print(Text(f"\n{plan.native_kind}", style="bold"))
    out.print(Text(plan.native_request.rstrip()), soft_wrap=True)


def print_outlook(outlook: OutlookView) -> None:
    starts = "the job would start now" if outlook.admitted else "the job would wait"
    ahead = f"; {counted(outlook.ahead, 'job')} ahead of it" if outlook.ahead else ""
    print_sentence(f"queue  {starts}: {outlook.sentence}{ahead}")
    if outlook.excluded_nodes:
        print_sentence(f"avoids {', '.join(outlook.excluded_nodes)}, which have recorded failures")


def print_against(against: AgainstView) -> None:
    out, begun = console(), "" if against.attempt is None else f", attempt {against.attempt}"
    for title, lines in (("spec", against.spec_changes), ("request", against.request_changes)):
        out.print(Text(f"{title} of {against.job}{begun}: {'changes' if lines else 'no change'}", style="bold"))
        for line in lines:
            style = {"+": "green", "-": "red"}.get(line[:1], "")
            out.print(Text(line, style=style), soft_wrap=True)
    if against.redo_steps is not None:
        start = "the beginning" if against.restores is None else against.restores
        takes = "" if against.redo_s is None else f", in about {duration(against.redo_s)}"
        print_sentence(f"its next attempt starts from {start} and repeats {counted(against.redo_steps, 'step')}{takes}")


def print_memory(memory: MemoryView) -> None:
    """Print the advice, and the parts of the memory at its peak."""
    parts = ", ".join(f"{name} {size(part)}" for name, part in memory.terms.items() if part)
    print_sentence(f"memory {memory.advice}")
    print_sentence(f"  {size(memory.total_bytes)} = {parts}")
