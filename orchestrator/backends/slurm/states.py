"""What Slurm's words mean: one table of its job states (squeue(1)), one of the reasons for which a job waits. Pure."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum

from orchestrator.backends.slurm.listing import SlurmJob
from orchestrator.backends.slurm.render import EXIT_REQUEUED, EXIT_UNPREPARED
from orchestrator.domain.observation.observation import CAN_NEVER_START
from trainer.contract.failure import Failure, FailureKind


class Standing(StrEnum):
    WAITS = "waits"
    RUNS = "runs"
    ENDS = "ends"  # its processes are being ended, or its end is being tidied up
    UNKNOWN = "unknown"
    OVER = "over"


@dataclass(frozen=True, slots=True)
class Meaning:
    standing: Standing
    kind: FailureKind | None = None  # of an end that Slurm made or saw
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
    # Its silence is no hang.
    "SUSPENDED": Meaning(Standing.UNKNOWN),
    "STOPPED": Meaning(Standing.UNKNOWN),
    "COMPLETED": Meaning(Standing.OVER),
    "FAILED": Meaning(Standing.OVER),
    "TIMEOUT": Meaning(Standing.OVER, FailureKind.TIMEOUT, "its time limit is over"),
    "DEADLINE": Meaning(Standing.OVER, FailureKind.TIMEOUT, "its deadline has passed"),
    "CANCELLED": Meaning(Standing.OVER, FailureKind.PREEMPTED, "it was cancelled in Slurm by somebody else"),
    "REVOKED": Meaning(Standing.OVER, FailureKind.PREEMPTED, "it was revoked by Slurm"),
    "PREEMPTED": Meaning(Standing.OVER, FailureKind.PREEMPTED, "Slurm gave its place to another job"),
    "NODE_FAIL": Meaning(Standing.OVER, FailureKind.NODE, "Slurm lost one of its nodes"),
    "BOOT_FAIL": Meaning(Standing.OVER, FailureKind.NODE, "a node did not boot"),
    "LAUNCH_FAILED": Meaning(Standing.OVER, FailureKind.INFRASTRUCTURE, "Slurm could not start it on its nodes"),
    "RECONFIG_FAIL": Meaning(Standing.OVER, FailureKind.INFRASTRUCTURE, "a node could not be reconfigured for it"),
    "OUT_OF_MEMORY": Meaning(Standing.OVER, FailureKind.HOST_OOM, "it used more memory than Slurm gave it"),
}
_UNHEARD = Meaning(Standing.UNKNOWN)

# Why a job waits, by what the reason begins with; Slurm's own word always stands beside it.
REASONS: tuple[tuple[str, str], ...] = (
    ("JobHeldUser", "it is held; release it with `scontrol release {id}`"),
    ("JobHeldAdmin", "an administrator holds it"),
    ("Priority", "jobs of higher priority come first"),
    ("Resources", "no nodes are free for it"),
    ("DependencyNeverSatisfied", "what it depends on can never be; cancel it"),
    ("Dependency", "it waits for another job of Slurm's"),
    ("BeginTime", "its time has not come"),
    ("ReqNodeNotAvail", "nodes that it needs are down, drained or reserved"),
    ("Nodes required for job are DOWN", "nodes that it needs are down, drained or reserved"),
    (
        "PartitionNodeLimit",
        f"{CAN_NEVER_START} with more nodes than its partition has or allows; scale it or have the limit raised",
    ),
    ("PartitionTimeLimit", f"{CAN_NEVER_START} with a time limit above the partition's; lower placement.time_limit_s"),
    ("PartitionConfig", f"{CAN_NEVER_START}: its partition has no such node; change resources or partition"),
    ("PartitionDown", "its partition is down"),
    ("PartitionInactive", "its partition is inactive"),
    ("BadConstraints", f"{CAN_NEVER_START}: no node satisfies its constraints"),
    ("Reservation", "it waits for its reservation"),
    ("QOS", "a limit of its QOS is reached"),
    ("MaxJobsPerAccount", "a limit of its account is reached"),
    ("Assoc", "a limit of its account is reached"),
    ("Licenses", "it waits for licences"),
    ("launch failed requeued held", "its launch failed and Slurm holds it; release it with `scontrol release {id}`"),
    ("user env retrieval failed", "Slurm cannot read the user's environment; ask its administrator"),
)
_FOR_NODES = ("Resources", "ReqNodeNotAvail", "Nodes required for job are DOWN")  # which other nodes could end
_SIGNAL_OF_LAUNCH = 53  # slurmstepd could not open the log or enter the folder; recorded in all versions
_COMMENT_LETTERS = 200
_ALMOST_S = 90.0  # Slurm sends its notice up to a minute early


def meaning(job: SlurmJob) -> Meaning:
    return STATES.get(job.state, _UNHEARD)


def waits_for_nodes(job: SlurmJob) -> bool:
    """Whether a waiting job would start if there were another free node."""
    return job.reason.startswith(_FOR_NODES)


def explain_wait(job: SlurmJob) -> str:
    """For what a job waits, in Slurm's word and ours."""
    words = next((words for begin, words in REASONS if job.reason.startswith(begin)), meaning(job).words)
    detail = f": {job.reason}" if job.reason else ""
    return f"waits in Slurm's queue as job {job.id}{detail}" + (f" ({words.format(id=job.id)})" if words else "")


def explain_canceller(row: SlurmJob | None, user: str) -> str:
    """Who cancelled a job, by its row in accounting. `user`: the name of the user whose id stands there."""
    if row is None:
        return "by somebody else; without accounting Slurm does not tell by whom"
    if row.state != "CANCELLED":
        return "by somebody else; accounting does not tell by whom"
    who = "by Slurm itself: its accounting names no user" if row.cancelled_by is None else f"by {user}"
    return f"{who}; the administrator's comment: {row.comment[:_COMMENT_LETTERS]}" if row.comment else who


def explain_pause(job: SlurmJob) -> str | None:
    """Who or what paused a job; None if it is not paused."""
    if job.state == "STOPPED":
        return f"SIGSTOP has stopped Slurm job {job.id}; `scancel --signal=CONT {job.id}` lets it go on"
    if job.state != "SUSPENDED":
        return None
    # _job_suspend() of slurmctld takes the priority of what `scontrol suspend` suspends, which is for administrators
    # alone (scontrol(1)), so that no scheduler resumes it. 0 in all recorded versions.
    if job.priority is None:
        return f"Slurm job {job.id} is suspended"
    if job.priority == 0:
        return f"an administrator has suspended Slurm job {job.id}; `scontrol resume {job.id}` lets it go on"
    return f"Slurm has suspended job {job.id} to let another one run, and resumes it by itself"


def find_cause(
    job: SlurmJob, *, notice_s: float, last_words: str, memory_words: str = "", canceller: str = ""
) -> Failure | None:
    """Slurm's word on why a job is over; None where its agents' own records must tell.

    `memory_words`: what it printed where it killed a step for its memory, which the job's state does not tell.
    `canceller`: who cancelled it, as explain_canceller says.
    """
    found, name = meaning(job), f"Slurm job {job.id}"
    if job.state == "CANCELLED" and found.kind is not None and canceller:
        return Failure(kind=found.kind, message=f"it was cancelled in Slurm {canceller} ({name}, {job.state})")
    if found.kind is not None:
        return Failure(kind=found.kind, message=f"{found.words} ({name}, {job.state})")
    if job.exit_code == EXIT_REQUEUED:
        return Failure(kind=FailureKind.PREEMPTED, message=f"it was requeued in Slurm by somebody else ({name})")
    if job.state == "FAILED" and (job.exit_signal == _SIGNAL_OF_LAUNCH or job.exit_code in (126, 127, EXIT_UNPREPARED)):
        why = last_words or f"its log or folder cannot be opened on {job.batch_host}"
        return Failure(kind=FailureKind.LAUNCH, message=f"{name} could not begin: {why}")
    if job.reason.startswith("BadConstraints"):
        return Failure(kind=FailureKind.LAUNCH, message=f"Slurm can never place it ({name}, {job.reason})")
    if _near_its_limit(job, notice_s):
        limit = f"{job.time_limit_s or 0:g} s"
        return Failure(kind=FailureKind.TIMEOUT, message=f"its time limit of {limit} came near ({name})")
    if memory_words and job.state == "FAILED":
        detail = f"{STATES['OUT_OF_MEMORY'].words} ({name}: {memory_words})"
        return Failure(kind=FailureKind.HOST_OOM, message=detail)
    return None


def _near_its_limit(job: SlurmJob, notice_s: float) -> bool:
    if job.time_limit_s is None or job.started_at is None or job.ended_at is None or job.exit_code == 0:
        return False
    return job.ended_at >= job.started_at + job.time_limit_s - notice_s - _ALMOST_S
