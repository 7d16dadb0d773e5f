"""The record that an agent leaves when it ends (`exit.json`), and the events that it journals until then."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import Enum

from trainer.contract.failure import Failure, parse_failure, render_failure


class Outcome(str, Enum):
    SUCCEEDED = "succeeded"
    FAILED = "failed"
    PREEMPTED = "preempted"  # stopped by a notice from the scheduler
    CANCELLED = "cancelled"  # stopped because the service asked for it
    REFUSED = "refused"  # another submission holds the claim of this attempt: nothing was started


@dataclass(frozen=True, kw_only=True)
class ExitRecord:
    """How one replica's agent ended. It counts even if the scheduler has forgotten the attempt."""

    outcome: Outcome
    at: str  # RFC 3339 UTC
    generation: int  # the last one
    restarts: int  # in place after failures; a change of the group's size is not one
    failure: Failure | None = None


def render_exit_record(record: ExitRecord) -> dict[str, object]:
    return {
        "outcome": record.outcome.value,
        "at": record.at,
        "generation": record.generation,
        "restarts": record.restarts,
        "failure": None if record.failure is None else render_failure(record.failure),
    }


def parse_exit_record(document: Mapping[str, object]) -> ExitRecord:
    """Raises ValueError without a known outcome: an unreadable record is no evidence of an end."""
    failure = document.get("failure")
    return ExitRecord(
        outcome=Outcome(str(document.get("outcome"))),
        at=str(document.get("at", "")),
        generation=int(str(document.get("generation", 1))),
        restarts=int(str(document.get("restarts", 0))),
        failure=parse_failure(failure) if isinstance(failure, Mapping) else None,
    )


class EventKind(str, Enum):
    """Events that agents and workers journal. The service adds its own kinds to the same log."""

    AGENT_STARTED = "agent.started"
    GENERATION_STARTED = "generation.started"
    WORKER_FAILED = "worker.failed"
    WORKER_REPLACED = "worker.replaced"  # it kept its process after a failure, but did not join the next generation
    AGENT_LOST = "agent.lost"  # the agent of this replica died; the sentence says what follows
    PEER_LOST = "peer.lost"  # no heartbeat of a replica arrives, or the store that one of them serves does not answer
    NODE_WAITED = "node.waited"  # before a generation, for room or memory
    STACKS_SAVED = "stacks.saved"  # of workers before they were killed, or on request
    CHAOS_INJECTED = "chaos.injected"  # a fault that an operator requested
    RESTARTED_IN_PLACE = "restart.in_place"  # a worker of the same membership failed
    GROUP_SHRUNK = "group.shrunk"  # formed again with fewer nodes than before
    GROUP_GREW = "group.grew"
    RESTORED = "restored"
    SNAPSHOT_COMMITTED = "snapshot.committed"
    SNAPSHOT_FAILED = "snapshot.failed"
    SNAPSHOT_SKIPPED = "snapshot.skipped"  # no time for one before the stop
    SNAPSHOT_QUARANTINED = "snapshot.quarantined"
    COPY_DAMAGED = "copy.damaged"  # a copy of the state in the memory of the node
    SNAPSHOT_DELETED = "snapshot.deleted"
    SETTING_IGNORED = "setting.ignored"  # this device or group does not support a setting
    SAMPLE_SKIPPED = "sample.skipped"  # it could not be read, and the job allows some of these
    PROVENANCE_CHANGED = "provenance.changed"  # code, versions or configuration since the restored snapshot
    BATCH_CHANGED = "batch.changed"  # since the restored snapshot, and whether the learning rate follows
    RANK_SLOW = "rank.slow"  # the others have waited for it for a while
    PROFILED = "profiled"  # a window of steps, with its share of communication
    METADATA_NOTED = "metadata.noted"  # this and the next two come from a script, through torchx's tracker
    ARTIFACT_ADDED = "artifact.added"
    SOURCE_ADDED = "source.added"
    FUNCTION_RETURNED = "function.returned"  # rank 0 of a submitted function; has its value
    AGENT_EXITED = "agent.exited"


# The group formed again. Each of its agents journals the same change.
GROUP_CHANGES = frozenset(
    {EventKind.RESTARTED_IN_PLACE.value, EventKind.GROUP_SHRUNK.value, EventKind.GROUP_GREW.value}
)


@dataclass(frozen=True, kw_only=True)
class JournalEvent:
    """One line of `events.jsonl`. `kind` is an EventKind's value, or one from a newer agent; kept as it is."""

    at: str
    kind: str
    sentence: str  # for the job's owner
    generation: int
    evidence: dict[str, object] = field(default_factory=dict)


def render_journal_event(event: JournalEvent) -> dict[str, object]:
    return dict(vars(event))


def parse_journal_event(document: Mapping[str, object]) -> JournalEvent:
    """Raises ValueError when kind or time is absent."""
    evidence = document.get("evidence")
    try:
        return JournalEvent(
            at=str(document["at"]),
            kind=str(document["kind"]),
            sentence=str(document.get("sentence", "")),
            generation=int(str(document.get("generation", 1))),
            evidence=dict(evidence) if isinstance(evidence, Mapping) else {},
        )
    except KeyError as error:
        raise ValueError(f"not an event line: {error} is missing") from error
