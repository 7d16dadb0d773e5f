"""`simulate`: simulate weeks on a cluster with the service's own policy and supervisor, in seconds."""

from __future__ import annotations

import json
import logging
import time
from typing import Annotated

import structlog
import typer
from pydantic import ValidationError

from orchestrator.cli.terminal import echo
from orchestrator.domain.field_rules import describe_rule
from orchestrator.domain.specs.spec import Topology
from orchestrator.simulator.failure_traces import TRACES, WORKER_SHARE
from orchestrator.simulator.memory_tier import MemoryTier
from orchestrator.simulator.report import build_report, render_report
from orchestrator.simulator.scenario import Scenario
from orchestrator.simulator.simulation import Simulation

_COPY_SHARE = 100  # copies take this fraction of the time, as by default in the trainer


def simulate(
    gpus: Annotated[int, typer.Option(metavar="N", min=1, help="GPUs of the cluster.")] = 16384,
    mtbf_hours: Annotated[
        float, typer.Option(metavar="HOURS", min=0.001, help="Mean hours between failures of the cluster.")
    ] = 3.09,
    days: Annotated[float, typer.Option(metavar="DAYS", min=0.001, max=3650, help="Days to simulate.")] = 54,
    seed: Annotated[int, typer.Option(metavar="N", help="The same seed gives the same output.")] = 1,
    trace: Annotated[
        str, typer.Option(metavar="TRACE", help=f"The pattern of failures: {', '.join(TRACES)}.")
    ] = "exponential",
    gpus_per_node: Annotated[int, typer.Option(metavar="N", min=1)] = 8,
    spares: Annotated[
        int | None, typer.Option(metavar="N", min=0, help="Spare nodes. Default: as many as are needed.")
    ] = None,
    jobs: Annotated[int, typer.Option(metavar="N", min=1, max=100_000)] = 1,
    nodes: Annotated[
        str | None,
        typer.Option(metavar="NODES", help="Nodes of each job, such as 4 or 2:8. Default: all, for one job."),
    ] = None,
    job_hours: Annotated[
        float | None,
        typer.Option(metavar="HOURS", min=0.001, help="Hours of training of a job, or their mean. Default: no end."),
    ] = None,
    snapshot_stall: Annotated[
        float, typer.Option(metavar="SECONDS", min=0, help="Seconds that a snapshot stops training.")
    ] = 5,
    snapshot_interval: Annotated[
        float | None,
        typer.Option(metavar="SECONDS", min=0.1, help="Seconds between two snapshots. Default: by Young's formula."),
    ] = None,
    restart: Annotated[
        float, typer.Option(metavar="SECONDS", min=0, help="Seconds from a failure to the first step after it.")
    ] = 90,
    restart_in_place: Annotated[
        float, typer.Option(metavar="SECONDS", min=0, help="The same for a restart in place.")
    ] = 20,
    repair_hours: Annotated[
        float, typer.Option(metavar="HOURS", min=0.001, help="Hours to repair a node, with --spares.")
    ] = 24,
    worker_share: Annotated[
        float | None,
        typer.Option(
            metavar="SHARE",
            min=0,
            max=1,
            help=f"Share of single nodes' failures that end only a worker. Default: 0, or {WORKER_SHARE} with copies.",
        ),
    ] = None,
    memory_interval: Annotated[
        float | None,
        typer.Option(metavar="SECONDS", min=0.1, help="Seconds between two copies in memory. Default: no copies."),
    ] = None,
    memory_stall: Annotated[
        float | None,
        typer.Option(
            metavar="SECONDS", min=0, help="Seconds that a copy stops training. Default: a hundredth of the interval."
        ),
    ] = None,
    memory_restart: Annotated[
        float | None,
        typer.Option(
            metavar="SECONDS", min=0, help="Seconds for a restart from memory. Default: that of --restart-in-place."
        ),
    ] = None,
    survivors: Annotated[
        bool, typer.Option("--survivors", help="A failure of a worker alone loses no completed step.")
    ] = False,
    buddies: Annotated[
        int, typer.Option(metavar="N", min=0, help="Size of a ring of nodes. Each also holds the copies of another.")
    ] = 0,
    pass_pause: Annotated[
        float, typer.Option(metavar="SECONDS", min=0, help="Minimum seconds between two supervisor passes.")
    ] = 0,
    without: Annotated[
        list[str] | None, typer.Option(metavar="RULE", help="A rule to remove from the policy. Repeatable.")
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False,
) -> None:
    """Simulate weeks of failures with the service's own policy."""
    if nodes is not None:
        try:
            Topology(nodes=nodes)
        except ValidationError as error:
            raise typer.BadParameter(describe_rule(error.errors()[0]), param_hint="--nodes") from error
    structlog.configure(
        wrapper_class=structlog.make_filtering_bound_logger(logging.CRITICAL), cache_logger_on_first_use=True
    )
    if memory_interval is None and (survivors or buddies or memory_stall is not None or memory_restart is not None):
        raise typer.BadParameter("--survivors, --buddies, --memory-stall and --memory-restart need --memory-interval")
    memory = None
    if memory_interval is not None:
        stall_s = memory_interval / _COPY_SHARE if memory_stall is None else memory_stall
        restart_s = restart_in_place if memory_restart is None else memory_restart
        memory = MemoryTier(
            interval_s=memory_interval, stall_s=stall_s, restart_s=restart_s, survivors=survivors, buddies=buddies
        )
    scenario = Scenario(
        gpus=gpus,
        mtbf_h=mtbf_hours,
        days=days,
        seed=seed,
        trace=trace,
        gpus_per_node=gpus_per_node,
        spares=spares,
        jobs=jobs,
        nodes=nodes,
        job_hours=job_hours,
        snapshot_stall_s=snapshot_stall,
        snapshot_interval_s=snapshot_interval,
        restart_s=restart,
        restart_in_place_s=restart_in_place,
        repair_h=repair_hours,
        worker_share=worker_share,
        memory=memory,
        pass_pause_s=pass_pause,
        without=tuple(without or ()),
    )
    started = time.perf_counter()
    result = Simulation(scenario).run()
    plain = None if memory is None else Simulation(scenario.without_memory()).run()
    took_s = time.perf_counter() - started
    echo(json.dumps(build_report(result, plain)) if as_json else render_report(result, plain))
    # On standard error, because the same arguments print the same on standard output.
    echo(f"simulated in {took_s:.1f} s", err=True)
