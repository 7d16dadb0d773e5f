"""Requests for stacks and for chaos: when they are accepted. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace

from orchestrator.domain.counted import counted
from orchestrator.domain.errors import Conflict, FieldProblem, InvalidSpec
from orchestrator.domain.job.attempt import Attempt, AttemptState
from orchestrator.domain.job.event import EventKind
from orchestrator.domain.job.job import Job, RequestedChaos, RequestedStacks
from orchestrator.domain.job.requests import JobRequest, require_going_on
from trainer.contract.chaos import OF_NODE, OF_RANK, Fault
from trainer.contract.location import is_url


@dataclass(frozen=True, slots=True, kw_only=True)
class Target:
    """What is known of the job that a request targets."""

    attempt: Attempt | None  # its newest
    world_size: int | None
    nodes: Mapping[int, str]  # node name by replica, for replicas with an agent
    places: Mapping[int, int]  # replica by rank, as far as workers have reported it
    newest_snapshot: str | None = None
    relied_on_by: str | None = None  # a job that continues from a snapshot of this one


@dataclass(frozen=True, slots=True, kw_only=True)
class Order:
    """A fault as it was requested. `node` is a replica's number or the name of its node."""

    fault: Fault
    rank: int | None = None
    node: str | int | None = None


def request_stacks(job: Job, target: Target, rank: int | None) -> JobRequest | None:
    """Raises Conflict, InvalidSpec."""
    attempt = _running(job, target, "ask for the stacks of")
    _require_rank(rank, target)
    known, mine = job.desired.stacks, attempt.key.number
    pending = known if known is not None and known.attempt == mine and known.number > attempt.errand_told else None
    if pending is not None and pending.rank in (None, rank):
        return None
    wider = rank if pending is None else None  # a second request for another rank becomes one for all ranks
    number = job.desired.number + 1
    request = RequestedStacks(number=number, attempt=mine, rank=wider)
    whose = "all ranks" if wider is None else f"rank {wider}"
    return JobRequest(
        replace(job.desired, stacks=request),
        EventKind.STACKS_REQUESTED,
        f"the stacks of {whose} were requested",
        evidence={"attempt": mine, "number": number, "rank": wider},
    )


def request_chaos(job: Job, target: Target, order: Order) -> JobRequest | None:
    """Raises Conflict, InvalidSpec. Repeating a request that the agents have not received changes nothing."""
    attempt = _running(job, target, "disturb")
    _require_place(order)
    _require_rank(order.rank, target)
    _require_snapshots(job, target, order.fault)
    known, mine = job.desired.chaos, attempt.key.number
    replica = _find_replica(job, target, order, attempt)
    chaos = RequestedChaos(
        number=job.desired.number + 1, attempt=mine, fault=order.fault, rank=order.rank, replica=replica
    )
    if known is not None and known.attempt == mine and known.number > attempt.errand_told:
        if replace(known, number=chaos.number) == chaos:
            return None
        raise Conflict(
            f"job {job.id} already has a pending fault ({known.fault.value}); wait until it has been injected"
        )
    evidence = {
        "fault": chaos.fault.value,
        "number": chaos.number,
        "attempt": mine,
        "rank": chaos.rank,
        "replica": chaos.replica,
    }
    sentence = f"chaos was requested: {chaos.fault.value}{_whom(chaos)}"
    return JobRequest(replace(job.desired, chaos=chaos), EventKind.CHAOS_REQUESTED, sentence, evidence=evidence)


def _running(job: Job, target: Target, verb: str) -> Attempt:
    require_going_on(job, verb)
    attempt = target.attempt
    if attempt is None or attempt.state is not AttemptState.RUNNING:
        raise Conflict(f"job {job.id} is {job.state}: no attempt is running, so there is nothing to {verb}")
    if attempt.stopping_since is not None:
        raise Conflict(f"attempt {attempt.key.number} of job {job.id} is ending; it is too late to {verb} it")
    if job.spec.launcher != "elasticrun":
        raise Conflict(f"job {job.id} runs under {job.spec.launcher}, whose agent takes no requests: use elasticrun")
    return attempt


def _require_place(order: Order) -> None:
    name = order.fault.value
    if order.rank is not None and order.fault not in OF_RANK:
        raise InvalidSpec([FieldProblem("/rank", f"{name} cannot target a single rank")])
    if order.node is not None and order.fault not in OF_NODE:
        raise InvalidSpec([FieldProblem("/node", f"{name} cannot target a node")])
    if order.rank is not None and order.node is not None:
        raise InvalidSpec([FieldProblem("/node", "name a rank or a node, not both")])


def _require_rank(rank: int | None, target: Target) -> None:
    if rank is not None and target.world_size is not None and rank >= target.world_size:
        raise InvalidSpec(
            [FieldProblem("/rank", f"is {rank}; the group has {counted(target.world_size, 'rank')}, from 0")]
        )


def _require_snapshots(job: Job, target: Target, fault: Fault) -> None:
    """A fault of snapshots needs a snapshot, or a program that is known to save some."""
    has_snapshot = target.newest_snapshot is not None
    if fault is Fault.DISK_FULL and not has_snapshot and job.spec.run.trainer is None:
        raise Conflict(f"job {job.id} has saved no snapshot, so a full disk would have no effect")
    if fault is not Fault.CORRUPT_SNAPSHOT:
        return
    if not has_snapshot:
        raise Conflict(f"job {job.id} has no snapshot to damage")
    if job.spec.snapshot.dir is not None and is_url(job.spec.snapshot.dir):
        raise Conflict(f"the snapshots of job {job.id} are in an object store; only files can be damaged")
    if target.relied_on_by is not None:
        raise Conflict(
            f"job {target.relied_on_by} continues from a snapshot of job {job.id}; the damage would affect it too"
        )


def _find_replica(job: Job, target: Target, order: Order, attempt: Attempt) -> int | None:
    if order.node is None:
        return next((replica for rank, replica in target.places.items() if rank == order.rank), None)
    text = str(order.node)
    found = [replica for replica, name in target.nodes.items() if name == text]
    if not found and text.isascii() and text.isdecimal() and int(text) < attempt.max_nodes:
        return int(text)
    if not found:
        known = ", ".join(f"{replica} ({name})" for replica, name in sorted(target.nodes.items())[:8])
        raise InvalidSpec([FieldProblem("/node", f"job {job.id} has no node {text}; it has {known or 'none yet'}")])
    if len(found) > 1:
        raise InvalidSpec([FieldProblem("/node", f"{len(found)} agents run on {text}; name one by its number")])
    return found[0]


def _whom(chaos: RequestedChaos) -> str:
    if chaos.rank is not None:
        return f" of rank {chaos.rank}"
    return "" if chaos.replica is None else f" on node {chaos.replica}"
