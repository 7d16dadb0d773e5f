"""Translate Slurm's job states (squeue(1)) and its reasons for waiting, one table each. Pure."""

from __future__ import annotations

import re
from dataclasses import dataclass
from enum import StrEnum

from orchestrator.backends.slurm.limits import explain_limit
from orchestrator.backends.slurm.listing import SlurmJob
from orchestrator.backends.slurm.render import EXIT_REQUEUED, EXIT_UNPREPARED
from orchestrator.domain.observation.observation import CAN_NEVER_START
from trainer.contract.failure import Failure, FailureKind


class Standing(StrEnum):
    WAITS = "waits"
    RUNS = "runs"
    ENDS = "ends"  # Slurm is ending its processes or cleaning up after them
    UNKNOWN = "unknown"
    OVER = "over"


@dataclass(frozen=True, slots=True)
class Meaning:
    standing: Standing
    kind: FailureKind | None = None  # set where Slurm itself ended the job or saw why it ended
    words: str = ""


STATES: dict[str, Meaning] = {
    "PENDING": Meaning(Standing.WAITS),
    "CONFIGURING": Meaning(Standing.WAITS, None, "its nodes are being prepared"),
    "REQUEUED": Meaning(Standing.WAITS),
    "REQUEUE_FED": Meaning(Standing.WAITS),
    "REQUEUE_HOLD": Meaning(Standing.WAITS),
    "RESV_DEL_HOLD": Meaning(Standing.WAITS, None, "its reservation was deleted"),
    "SPECIAL_EXIT": Meaning(Standing.WAITS),
    "RUNNING": Meaning(Standing.RUNS),
    "RESIZING": Meaning(Standing.RUNS),
    "SIGNALING": Meaning(Standing.RUNS),
    "EXPEDITING": Meaning(Standing.RUNS),
    "COMPLETING": Meaning(Standing.ENDS),
    "STAGE_OUT": Meaning(Standing.ENDS),
    # A paused job reports nothing and does not hang.
    "SUSPENDED": Meaning(Standing.UNKNOWN),
    "STOPPED": Meaning(Standing.UNKNOWN),
    "COMPLETED": Meaning(Standing.OVER),
    "FAILED": Meaning(Standing.OVER),
    "TIMEOUT": Meaning(Standing.OVER, FailureKind.TIMEOUT, "it reached its time limit"),
    "DEADLINE": Meaning(Standing.OVER, FailureKind.TIMEOUT, "its deadline has passed"),
    "CANCELLED": Meaning(Standing.OVER, FailureKind.PREEMPTED, "somebody else cancelled it in Slurm"),
    "REVOKED": Meaning(Standing.OVER, FailureKind.PREEMPTED, "Slurm revoked it"),
    "PREEMPTED": Meaning(Standing.OVER, FailureKind.PREEMPTED, "Slurm preempted it for another job"),
    "NODE_FAIL": Meaning(Standing.OVER, FailureKind.NODE, "Slurm lost one of its nodes"),
    "BOOT_FAIL": Meaning(Standing.OVER, FailureKind.NODE, "a node did not boot"),
    "LAUNCH_FAILED": Meaning(Standing.OVER, FailureKind.INFRASTRUCTURE, "Slurm could not start it on its nodes"),
    "RECONFIG_FAIL": Meaning(Standing.OVER, FailureKind.INFRASTRUCTURE, "Slurm could not reconfigure a node for it"),
    "OUT_OF_MEMORY": Meaning(Standing.OVER, FailureKind.HOST_OOM, "it used more memory than Slurm allocated to it"),
}
_UNKNOWN_STATE = Meaning(Standing.UNKNOWN)

# Why a job waits, by the start of Slurm's reason. The message always contains Slurm's own word too.
REASONS: tuple[tuple[str, str], ...] = (
    ("JobHeldUser", "its user holds it; release it with `scontrol release {id}`"),
    ("JobHeldAdmin", "an administrator holds it"),
    ("Priority", "jobs with higher priority start first"),
    ("Resources", "no nodes are free for it"),
    ("DependencyNeverSatisfied", "its dependency can never be satisfied; cancel it"),
    ("Dependency", "it waits for another Slurm job"),
    ("BeginTime", "its begin time is in the future"),
    ("ReqNodeNotAvail", "nodes that it needs are down, drained or reserved"),
    ("Nodes required for job are DOWN", "nodes that it needs are down, drained or reserved"),
    (
        "PartitionNodeLimit",
        f"{CAN_NEVER_START} with more nodes than its partition has or allows; scale it down or raise the limit",
    ),
    ("PartitionTimeLimit", f"{CAN_NEVER_START} with a time limit above the partition's; lower placement.time_limit_s"),
    ("PartitionConfig", f"{CAN_NEVER_START}: its partition has no such node; change resources or partition"),
    ("PartitionDown", "its partition is down"),
    ("PartitionInactive", "its partition is inactive"),
    ("BadConstraints", f"{CAN_NEVER_START}: no node satisfies its constraints"),
    ("Reservation", "it waits for its reservation"),
    ("InvalidQOS", f"{CAN_NEVER_START}: its account may not use its QOS; change placement.qos"),
    ("InvalidAccount", f"{CAN_NEVER_START}: its account does not exist; change placement.account"),
    ("QOSNotAllowed", f"{CAN_NEVER_START}: its partition does not allow its QOS; change placement.qos or partition"),
    ("AccountNotAllowed", f"{CAN_NEVER_START}: its partition does not allow its account; change placement.account"),
    ("QOS", "its QOS reached a limit"),
    ("Assoc", "its account reached a limit"),
    ("Licenses", "it waits for licenses"),
    ("launch failed requeued held", "its launch failed and Slurm holds it; release it with `scontrol release {id}`"),
    ("user env retrieval failed", "Slurm cannot read the user's environment; ask its administrator"),
)
_FOR_NODES = ("Resources", "ReqNodeNotAvail", "Nodes required for job are DOWN")  # a wait that other nodes could end
_LAUNCH_SIGNAL = 53  # slurmstepd could not open the log or enter the folder (all recorded versions)
# The message with which slurmstepd kills a step (jobacct_gather.c) or slurmd cancels the job (job_mem_limit.c). Another
# message, about the kernel's oom-kill, can be older than a cancellation by a user.
_MEMORY_LIMIT = re.compile("[Ee]xceeded .*memory limit")
_COMMENT_LETTERS = 200
_ALMOST_S = 90.0  # Slurm sends its notice up to a minute early


def meaning(job: SlurmJob) -> Meaning:
    return STATES.get(job.state, _UNKNOWN_STATE)


def waits_for_nodes(job: SlurmJob) -> bool:
    """Whether a waiting job would start if another node were free."""
    return job.reason.startswith(_FOR_NODES)


def explain_wait(job: SlurmJob) -> str:
    """Explain why a job waits. The text contains Slurm's own reason."""
    words = explain_limit(job.reason) or next(
        (words for begin, words in REASONS if job.reason.startswith(begin)), meaning(job).words
    )
    detail = f": {job.reason}" if job.reason else ""
    return f"waits in Slurm's queue as job {job.id}{detail}" + (f" ({words.format(id=job.id)})" if words else "")


def explain_canceller(row: SlurmJob | None, user: str) -> str:
    """Explain who cancelled a job, from its row in accounting. `user` is the name of the user in that row."""
    if row is None:
        return "by somebody else; without accounting, Slurm does not say who it was"
    if row.state != "CANCELLED":
        return "by somebody else; accounting does not say who it was"
    who = "by Slurm itself (accounting names no user)" if row.cancelled_by is None else f"by {user}"
    return f"{who}; the administrator's comment: {row.comment[:_COMMENT_LETTERS]}" if row.comment else who


def explain_pause(job: SlurmJob) -> str | None:
    """Explain who or what paused a job. None if it is not paused."""
    if job.state == "STOPPED":
        return f"SIGSTOP stopped Slurm job {job.id}; continue it with `scancel --signal=CONT {job.id}`"
    if job.state != "SUSPENDED":
        return None
    # Only administrators may call `scontrol suspend` (scontrol(1)). slurmctld's _job_suspend() then sets the priority
    # to 0, so that no scheduler resumes the job (all recorded versions).
    if job.priority is None:
        return f"Slurm job {job.id} is suspended"
    if job.priority == 0:
        return f"an administrator suspended Slurm job {job.id}; resume it with `scontrol resume {job.id}`"
    return f"Slurm suspended job {job.id} to run another job, and will resume it"


def find_cause(
    job: SlurmJob, *, notice_s: float, last_words: str, memory_words: str = "", canceller: str = ""
) -> Failure | None:
    """Return Slurm's cause for the end of a job. None if only the agents' own records can name the cause.

    `memory_words` is what Slurm printed when it killed a step or the job for its memory. The state does not show that.
    `canceller` says who cancelled the job (see explain_canceller).
    """
    found, name = meaning(job), f"Slurm job {job.id}"
    out_of_memory = Failure(
        kind=FailureKind.HOST_OOM, message=f"{STATES['OUT_OF_MEMORY'].words} ({name}: {memory_words})"
    )
    if job.state == "CANCELLED" and _MEMORY_LIMIT.search(memory_words):
        return out_of_memory
    if job.state == "CANCELLED" and found.kind is not None and canceller:
        return Failure(kind=found.kind, message=f"it was cancelled in Slurm {canceller} ({name}, {job.state})")
    if found.kind is not None:
        return Failure(kind=found.kind, message=f"{found.words} ({name}, {job.state})")
    if job.exit_code == EXIT_REQUEUED:
        return Failure(kind=FailureKind.PREEMPTED, message=f"somebody else requeued it in Slurm ({name})")
    if job.state == "FAILED" and (job.exit_signal == _LAUNCH_SIGNAL or job.exit_code in (126, 127, EXIT_UNPREPARED)):
        why = last_words or f"{job.batch_host} cannot open its log or folder"
        return Failure(kind=FailureKind.LAUNCH, message=f"{name} could not start: {why}")
    if job.reason.startswith("BadConstraints"):
        return Failure(kind=FailureKind.LAUNCH, message=f"Slurm can never place it ({name}, {job.reason})")
    timeout = None if job.ended_at is None else find_timeout(job, job.ended_at, notice_s=notice_s)
    if timeout is not None and job.exit_code != 0:
        return timeout
    return out_of_memory if memory_words and job.state == "FAILED" else None


def find_timeout(job: SlurmJob, ended_at: float, *, notice_s: float) -> Failure | None:
    """Return the time limit as the cause if the job's agents ended near it."""
    if job.time_limit_s is None or job.started_at is None:
        return None
    if ended_at < job.started_at + job.time_limit_s - notice_s - _ALMOST_S:
        return None
    message = f"it ended near its time limit of {job.time_limit_s:g} s (Slurm job {job.id})"
    return Failure(kind=FailureKind.TIMEOUT, message=message)
