"""Judge an attempt from Slurm's answer and the traces in its folder: alive, dead or unknown. Pure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace

from orchestrator.backends.slurm.listing import SlurmJob
from orchestrator.backends.slurm.states import Standing, explain_pause, explain_wait, find_cause, find_timeout, meaning
from orchestrator.backends.traces import sight_departed
from orchestrator.domain.job.attempt import AttemptKey
from orchestrator.domain.observation.observation import Liveness, Presence, ReplicaSighting, Sighting
from trainer.contract.failure import Failure, FailureKind
from trainer.contract.node import Departure

_CLOCKS_S = 600.0  # maximum clock difference: munge(7) refuses credentials that are 300 s off, and sbatch adds a delay
_UNNAMED = "allocation"  # in accounting of 22.05, the name of a job whose start slurmdbd does not know (yet)


@dataclass(frozen=True, slots=True, kw_only=True)
class Traces:
    """What an attempt's folder shows. `recorded` holds the replicas whose agents left an exit record."""

    replicas: int  # the number that was to be launched
    claim: str | None = None  # names the Slurm job that claimed the attempt
    submitted: frozenset[int] = frozenset()  # ids of the Slurm jobs that the service submitted
    allocations: Mapping[int, tuple[str, ...]] = field(default_factory=dict)  # allocated nodes by Slurm job
    departures: Mapping[int, Departure] = field(default_factory=dict)  # by replica
    recorded: frozenset[int] = frozenset()
    last_words: str = ""  # the batch script's last line of output
    memory_words: str = ""  # Slurm's message when it killed a step for its memory

    @property
    def known(self) -> frozenset[int]:
        """Ids of the Slurm jobs that left any trace."""
        holder = set() if self.holder is None else {self.holder}
        return self.submitted | frozenset(self.allocations) | holder

    @property
    def holder(self) -> int | None:
        """The id of the Slurm job that holds the claim."""
        number = (self.claim or "").rpartition("-")[2]
        return int(number) if self.claim and self.claim.startswith("slurm-") and number.isdecimal() else None


@dataclass(frozen=True, slots=True, kw_only=True)
class SightContext:
    now: float  # seconds since the epoch on the service's clock
    settle_s: float
    notice_s: float
    ours: frozenset[int] = frozenset()  # ids of the Slurm jobs that the service ended
    canceller: str = ""  # who cancelled the job, if not the service
    broken: Mapping[str, str] = field(default_factory=dict)  # nodes that Slurm calls down or failing, with its words
    step_over: bool = False  # for `settle_s`, Slurm has listed no step of a job that lost its script


@dataclass(frozen=True, slots=True, kw_only=True)
class Submission:
    """Identifies the Slurm job that was submitted for an attempt, together with its id."""

    name: str
    user: int
    noted_at: float | None  # when its id was recorded, by the file system's clock; None if it was not


def matches_submission(job: SlurmJob, made: Submission) -> bool:
    """Whether the job with this id is the submitted one. Slurm reuses ids after it loses its state.

    A requeue makes the submit time later. Nothing makes it earlier.
    """
    if job.user not in (None, made.user):
        return False
    if job.submitted_at is None or made.noted_at is None:
        return job.name == made.name
    later_s = job.submitted_at - made.noted_at
    if job.name == _UNNAMED:
        return abs(later_s) <= _CLOCKS_S
    return job.name == made.name and later_s >= -_CLOCKS_S


def choose(jobs: Sequence[SlurmJob], traces: Traces) -> SlurmJob:
    """Choose the job that counts among an attempt's submissions: the claim's holder, else one that is not over.

    Slurm may list a refused submission as a failed job. Among jobs that are over, an accepted one counts.
    """

    def rank(job: SlurmJob) -> tuple[bool, bool, bool, int]:
        over = meaning(job).standing is Standing.OVER
        return (job.id != traces.holder, over, job.id not in traces.submitted, job.id)

    return min(jobs, key=rank)


def sight(key: AttemptKey, job: SlurmJob, traces: Traces, context: SightContext) -> Sighting:
    """Judge an attempt that Slurm lists."""
    found, evidence = meaning(job), f"Slurm job {job.id} is {job.state}"
    if found.standing is Standing.UNKNOWN:
        return Sighting(key=key, presence=Presence.UNKNOWN, evidence=evidence, pause_reason=explain_pause(job))
    if found.standing is not Standing.OVER and job.restarts > 0:
        return _requeued(key, job, traces)
    if found.standing is Standing.WAITS:
        return Sighting(key=key, presence=Presence.PENDING, evidence=explain_wait(job))
    nodes = _nodes(job, traces)
    if found.standing is Standing.OVER:
        return _judge_over(key, job, nodes, traces, context)
    replicas = tuple(_judge_running(replica, node, job, traces) for replica, node in enumerate(nodes))
    sighting = Sighting(
        key=key, presence=Presence.RUNNING, evidence=evidence, replicas=replicas, nodes=len(nodes) or None
    )
    return _judge_without_script(sighting, job, nodes[0], context) if lost_script(job, traces) else sighting


def lost_script(job: SlurmJob, traces: Traces) -> bool:
    """Whether a running --no-kill job lost its first node, where its script and srun ran.

    Slurm keeps such a job until its time limit. The processes on the other nodes continue (observed in 22.05).
    """
    nodes = _nodes(job, traces)
    return meaning(job).standing is Standing.RUNS and bool(nodes and job.nodes) and nodes[0] not in job.nodes


def sight_forgotten(key: AttemptKey, traces: Traces, *, quiet: bool, reused: bool = False) -> Sighting:
    """Judge an attempt whose Slurm job existed but is no longer known to Slurm.

    `reused` means that another job now has its id.
    """
    evidence = f"Slurm no longer knows job {max(traces.known)}"
    if reused:
        evidence += ": another job has that id now"
    if not quiet:
        words = f"{evidence}; its agents wrote recently and may still run"
        return Sighting(key=key, presence=Presence.UNKNOWN, evidence=words)
    if traces.claim is None:
        return Sighting(key=key, presence=Presence.ABSENT, evidence=f"{evidence}, and none of its agents ever started")
    nodes = traces.allocations.get(max(traces.known), ())
    replicas = tuple(
        _dead(replica, f"replica {replica}'s agent: {evidence}") for replica in range(len(nodes) or traces.replicas)
    )
    return Sighting(key=key, presence=Presence.GONE, evidence=evidence, replicas=replicas, nodes=len(nodes) or None)


def _requeued(key: AttemptKey, job: SlurmJob, traces: Traces) -> Sighting:
    """Judge a requeued job as gone. The service forbids requeues, so its second run is not part of the attempt."""
    cause = _requeue_cause(job)
    words = cause.message
    replicas = tuple(
        replace(_dead(replica, words), leftovers=True)
        for replica in range(len(traces.allocations.get(job.id, ())) or traces.replicas)
    )
    return Sighting(
        key=key, presence=Presence.GONE, evidence=words, replicas=replicas, cause=cause, nodes=len(replicas)
    )


def _requeue_cause(job: SlurmJob) -> Failure:
    return Failure(kind=FailureKind.PREEMPTED, message=f"somebody else requeued it in Slurm (job {job.id})")


def _nodes(job: SlurmJob, traces: Traces) -> Sequence[str]:
    """Return the node of each replica."""
    return traces.allocations.get(job.id) or job.nodes


def _judge_without_script(sighting: Sighting, job: SlurmJob, first: str, context: SightContext) -> Sighting:
    """Judge a job that lost its script. It is gone after its last agent, and its allocation is left."""
    if not context.step_over and any(one.liveness is not Liveness.DEAD for one in sighting.replicas):
        return replace(sighting, evidence=f"{sighting.evidence} without {first}, where its script ran")
    words = f"Slurm job {job.id} lost {first}, where its script ran, and its other agents have ended"
    replicas = tuple(replace(_end_with_step(one, job), leftovers=True) for one in sighting.replicas)
    cause = find_timeout(job, context.now, notice_s=context.notice_s)
    return replace(sighting, presence=Presence.GONE, evidence=words, replicas=replicas, cause=cause)


def _end_with_step(seen: ReplicaSighting, job: SlurmJob) -> ReplicaSighting:
    if seen.liveness is Liveness.DEAD:
        return seen
    return _dead(seen.replica, f"replica {seen.replica}'s agent left no record, and Slurm job {job.id} runs no step")


def _judge_running(replica: int, node: str, job: SlurmJob, traces: Traces) -> ReplicaSighting:
    departure = traces.departures.get(replica)
    if departure is not None:
        return sight_departed(departure, traces.recorded)
    if meaning(job).standing is Standing.RUNS and node not in job.nodes:
        words = f"replica {replica} was on {node}, which Slurm job {job.id} lost"
        return replace(_dead(replica, words), node=node)
    words = f"replica {replica} is on {node} in Slurm job {job.id}, which is {job.state}"
    return ReplicaSighting(replica=replica, liveness=Liveness.ALIVE, evidence=words, node=node)


def _judge_over(
    key: AttemptKey, job: SlurmJob, nodes: Sequence[str], traces: Traces, context: SightContext
) -> Sighting:
    detail = f" ({job.reason})" if job.reason else ""
    evidence = f"Slurm job {job.id} is over: {job.state}{detail}"
    settled = _never_ran(job, traces) or job.ended_at is None or context.now - job.ended_at >= context.settle_s
    replicas = tuple(
        _judge_ended(
            replica, nodes[replica] if replica < len(nodes) else None, evidence, traces, context, settled=settled
        )
        for replica in range(len(nodes) or traces.replicas)
    )
    unrecorded = [each for each in replicas if each.replica not in traces.recorded]
    down = {each.node: context.broken[each.node] for each in unrecorded if each.node is not None}
    gone = all(each.liveness is Liveness.DEAD for each in replicas)
    return Sighting(
        key=key,
        presence=Presence.GONE if gone else Presence.UNKNOWN,
        evidence=evidence,
        replicas=replicas,
        cause=_cause(job, traces, context, down, settled=settled),
        nodes=len(nodes) or None,
    )


def _never_ran(job: SlurmJob, traces: Traces) -> bool:
    """Whether the job was cancelled while it waited. Then no record can appear late."""
    no_trace = traces.claim is None and job.id not in traces.allocations
    return job.state == "CANCELLED" and not job.nodes and job.restarts == 0 and no_trace


def _cause(
    job: SlurmJob, traces: Traces, context: SightContext, down: Mapping[str, str], *, settled: bool
) -> Failure | None:
    """Return the cause that Slurm or its nodes show. None if only the agents' own records can name it."""
    if job.restarts > 0:  # even if the service has ended the second run
        return _requeue_cause(job)
    ours, began = job.id in context.ours, traces.claim is not None or bool(traces.recorded)
    if settled and not ours and not began and job.id not in traces.allocations and down:
        return _unprepared(job, down)
    clues = {"last_words": traces.last_words, "memory_words": traces.memory_words, "canceller": context.canceller}
    found = None if ours else find_cause(job, notice_s=context.notice_s, **clues)
    if found is None and settled and not ours and not began:
        return _never_began(job, traces)
    if found is not None and found.kind is FailureKind.NODE and down:
        return replace(found, message=f"{found.message}: {_list_nodes(down)}")
    if found is None and down:
        words = f"Slurm calls {_list_nodes(down)}, and the agent there is gone"
        return Failure(kind=FailureKind.NODE, message=words)
    return found


def _judge_ended(
    replica: int, node: str | None, evidence: str, traces: Traces, context: SightContext, *, settled: bool
) -> ReplicaSighting:
    """Judge a replica of an ended job. A network file system may show its exit record late."""
    trouble = "" if node is None else context.broken.get(node, "")
    if replica in traces.recorded and trouble.startswith("down"):  # its record may only report lost peers
        return replace(_dead(replica, f"Slurm calls {node} {trouble}"), node=node, node_unreachable=True)
    if replica in traces.recorded:
        return _dead(replica, f"replica {replica}'s agent left its record; {evidence}")
    departure = traces.departures.get(replica)
    if departure is not None and not departure.recorded:
        return replace(sight_departed(departure, traces.recorded), leftovers=False)
    if not settled:
        words = f"{evidence}; the exit record of replica {replica} may still appear"
        return ReplicaSighting(replica=replica, liveness=Liveness.UNKNOWN, evidence=words)
    blamed = node if node in context.broken else None
    where = "" if node is None else f" on {node}"
    return replace(_dead(replica, f"replica {replica}'s agent{where} left no record; {evidence}"), node=blamed)


def _unprepared(job: SlurmJob, down: Mapping[str, str]) -> Failure:
    """Explain a job whose script never started: a step before it failed on a node, most often Slurm's own prolog.

    Slurm 22.05 then cancels the job, because it may not requeue it.
    """
    words = f"Slurm job {job.id} ended {job.state} before its script began; Slurm calls {_list_nodes(down)}"
    return Failure(kind=FailureKind.INFRASTRUCTURE, message=words)


def _never_began(job: SlurmJob, traces: Traces) -> Failure:
    why = traces.last_words or f"exit code {job.exit_code}, signal {job.exit_signal}"
    message = f"Slurm job {job.id} ended {job.state} before any agent started: {why}"
    return Failure(kind=FailureKind.INFRASTRUCTURE, message=message)


def _list_nodes(down: Mapping[str, str]) -> str:
    return ", ".join(f"{node} {words}" for node, words in sorted(down.items()))


def _dead(replica: int, evidence: str) -> ReplicaSighting:
    return ReplicaSighting(replica=replica, liveness=Liveness.DEAD, evidence=evidence)
