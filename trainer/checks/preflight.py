"""`python -m trainer.checks.preflight [--config ...]` under elasticrun: check that such a job starts and restores.

Checks ports, names, versions, clocks and storage of the nodes, and the all-reduce of all ranks and of each pair of
nodes. With a configuration it then trains: two steps and a snapshot, and in a new group a restore and the third step.
Rank 0 prints a verdict for each check and for each node. Exit codes: 0 nothing failed, 1 a check failed, 2 a wrong
configuration.
"""

from __future__ import annotations

import argparse
import os
import shutil
import sys
import time
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import replace
from datetime import timedelta
from pathlib import Path

import torch.distributed as dist
from torch.distributed.rendezvous import rendezvous

from trainer import snapshot
from trainer.__main__ import leave, read_config
from trainer.checks.preflight_checks import CHECKS
from trainer.checks.preflight_nodes import CheckContext, Host
from trainer.checks.preflight_ports import check_ports
from trainer.contract.blame import judge_nodes, render_node_verdict
from trainer.contract.config import TrainerConfig
from trainer.contract.env import WorkerPlace, parse_place
from trainer.contract.verdict import Outcome, Verdict, render_verdict
from trainer.errors import TrainerError
from trainer.snapshot import Location, Remote
from trainer.snapshot.lineage import snapshots_of
from trainer.train import run
from trainer.worker.group import process_group
from trainer.worker.heartbeat import Heartbeat
from trainer.worker.signals import StopFlag
from trainer.worker.waits import Waits

_BEFORE, _STEPS = 2, 3  # steps before the restore, and in all
_REPORTED, _REPORT_TIMEOUT = "preflight reported", timedelta(minutes=1)
_GROUPS = 10  # at most, in one preflight: each counts as a generation


def main(argv: Sequence[str] | None = None) -> int:
    stop = StopFlag()
    stop.install()
    parser = argparse.ArgumentParser(prog="python -m trainer.checks.preflight", description=__doc__)
    parser.add_argument("--config", help="the trainer's configuration as JSON, or @file")
    parser.add_argument("--local-rank", "--local_rank", type=int, help=argparse.SUPPRESS)
    options = parser.parse_args(argv)
    try:
        config = None if options.config is None else read_config(options.config)
        place = parse_place(os.environ)
    except ValueError as error:
        print(f"preflight: {error}", file=sys.stderr)
        return 2
    # Each group connects to rank 0's store. This reference keeps the store open between two groups.
    held = next(rendezvous("env://", timeout=timedelta(minutes=5))) if place.world_size > 1 else None
    store = None if held is None else held[0]
    name, snapshots = f".preflight-a{place.attempt}-g{place.generation}", snapshots_of(place)
    in_store = snapshots / name if isinstance(snapshots, Remote) else None
    scratch = (snapshots if isinstance(snapshots, Path) else Path(place.job_dir or ".").absolute()) / name
    try:
        reached, hosts = check_ports(store, place)
        verdicts = [_reported(reached, place)]
        if reached.outcome is not Outcome.FAIL:  # a group would fail to form after minutes, and name no node
            verdicts += _check_nodes(place, scratch, hosts)
            verdicts.append(_reported(_check_steps(config, place, scratch, in_store, stop), place))
    finally:
        if place.rank == 0:
            shutil.rmtree(scratch, ignore_errors=True)
            if in_store is not None:
                in_store.remove_tree()
    failed = any(verdict.outcome is Outcome.FAIL for verdict in verdicts)
    if place.rank == 0:
        for node in judge_nodes((host.node for host in hosts), verdicts):
            print(render_node_verdict(node), flush=True)
        if store is not None:
            store.set(_REPORTED, b"1")
    elif failed and store is not None:
        await_report(store)
    del held, store
    return 1 if failed else 0


def await_report(store: dist.Store) -> None:
    """Wait until rank 0 has printed all verdicts. The failed exit of another rank ends rank 0."""
    with suppress(RuntimeError):  # rank 0 has ended, or takes too long
        store.wait([_REPORTED], _REPORT_TIMEOUT)


def _check_nodes(place: WorkerPlace, scratch: Path, hosts: Sequence[Host]) -> list[Verdict]:
    waits = Waits(Heartbeat(place, _STEPS))
    with process_group(_as_group(place, 0), waits) as device:
        context = CheckContext(place=place, device=device, scratch=scratch, waits=waits, hosts=hosts)
        return [_reported(check(context), place) for check in CHECKS]  # all checks, whatever the first ones find


def _check_steps(
    config: TrainerConfig | None, place: WorkerPlace, scratch: Path, in_store: Remote | None, stop: StopFlag
) -> Verdict:
    """On rank 0, the verdict. On the other ranks, whether they could take part."""
    if config is None:
        sentence = "your own program is not tried"
        return Verdict(check="steps", outcome=Outcome.SKIPPED, sentence=sentence)
    try:
        own = replace(
            place,
            job_dir=str(scratch),
            snapshot_dir=None if in_store is None else str(in_store),
            restore_from=None,
            retry=0,
        )
        seconds = [_train(config, own, stop, group, steps) for group, steps in ((1, _BEFORE), (2, _STEPS))]
        problem = _find_problem(snapshots_of(own)) if place.rank == 0 else None
    except TrainerError as error:
        problem, seconds = f"{type(error).__name__}: {error}", []
    if problem is not None:
        return Verdict(check="steps", outcome=Outcome.FAIL, sentence=problem)
    sentence = (
        f"{_BEFORE} steps and a snapshot in {seconds[0]:.1f} s, a restore and one more step in {seconds[1]:.1f} s, "
        "both with the time to form the group"
    )
    return Verdict(check="steps", outcome=Outcome.OK, sentence=sentence)


def _train(config: TrainerConfig, place: WorkerPlace, stop: StopFlag, group: int, steps: int) -> float:
    """Train up to `steps`, with snapshots, and return the seconds."""
    began = time.monotonic()
    short = replace(
        config, steps=steps, snapshot_interval=str(_BEFORE), snapshot_keep=2, snapshot_memory="off"
    )  # the restore is to read from disk
    if run(short, _as_group(place, group), stop) != 0:
        raise TrainerError(f"stopped before step {steps}")
    return time.monotonic() - began


def _find_problem(folder: Location) -> str | None:
    """The snapshots' problem. None if the last one is whole and descends from the first one."""
    names = {name.step: name for name in snapshot.list_committed(folder)}
    if set(names) != {_BEFORE, _STEPS}:
        return f"there are snapshots of steps {sorted(names)}, not of {_BEFORE} and {_STEPS}"
    parent = snapshot.verify(folder / str(names[_STEPS])).parent
    return None if parent == str(names[_BEFORE]) else f"step {_STEPS} did not continue the snapshot of step {_BEFORE}"


def _as_group(place: WorkerPlace, number: int) -> WorkerPlace:
    """Groups of one process must not share keys in the store, so each counts as its own generation."""
    return replace(place, generation=place.generation * _GROUPS + number)


def _reported(verdict: Verdict, place: WorkerPlace) -> Verdict:
    if place.rank == 0:
        print(render_verdict(verdict), flush=True)
    return verdict


if __name__ == "__main__":
    leave(main)
