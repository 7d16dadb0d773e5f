"""Judge an attempt from torchx's answer and the traces in its folder: alive, dead or unknown. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from orchestrator.backends.torchx.client import AppStatus
from orchestrator.backends.traces import sight_departed
from orchestrator.domain.job.attempt import AttemptKey
from orchestrator.domain.observation.observation import Liveness, Presence, ReplicaSighting, Sighting
from trainer.contract.failure import Failure, FailureKind
from trainer.contract.node import Departure

WAITS = frozenset({"UNSUBMITTED", "SUBMITTED", "PENDING"})  # torchx.specs.AppState
OVER = frozenset({"SUCCEEDED", "FAILED", "CANCELLED"})
RUNS = "RUNNING"


@dataclass(frozen=True, slots=True, kw_only=True)
class Traces:
    """What the attempt's folder shows. `claim` names the submission whose agents run the attempt."""

    replicas: int
    claim: str | None = None
    departures: Mapping[int, Departure] = field(default_factory=dict)  # by replica; only of agents with the claim
    recorded: frozenset[int] = frozenset()  # replicas whose agents left an exit record
    ever_alive: frozenset[int] = frozenset()  # replicas whose nodes have ever touched their file
    alive: frozenset[int] = frozenset()  # those that have touched it lately

    @property
    def all_ended(self) -> bool:
        """Whether all agents have ended, as far as the folder shows."""
        return all(number in self.recorded or number in self.departures for number in range(self.replicas))


@dataclass(frozen=True, slots=True, kw_only=True)
class Context:
    """What else is known of an attempt that torchx does not show as waiting or running."""

    settled: bool = False  # torchx has said the same for so long that all files of its agents are visible
    ours: bool = False  # the service has cancelled it
    last_words: str = ""  # the last line that an agent printed


def choose(submissions: Mapping[str, str | None], traces: Traces) -> str | None:
    """Choose the app that counts: that of the claim, else the newest one. None if none is known."""
    if traces.claim is not None and traces.claim in submissions:
        return submissions[traces.claim]
    return next((app for app in reversed([*submissions.values()]) if app is not None), None)


def sight(key: AttemptKey, app: str | None, said: AppStatus | None, traces: Traces, context: Context) -> Sighting:
    """Judge an attempt. `said` is None if torchx does not know the app."""
    if app is None and traces.claim is None:
        return Sighting(key=key, presence=Presence.ABSENT, evidence="torchx accepted no app for it, and no agent began")
    evidence = _describe(app, said)
    if traces.claim is not None and traces.all_ended and not _is_record_awaited(traces):
        return _sight_gone(key, evidence, traces)
    if said is not None and said.state in OVER:
        return _judge_over(key, evidence, traces, context)
    if said is None or said.state not in {*WAITS, RUNS}:
        return _judge_by_traces(key, evidence, traces, context, is_known=said is not None)
    if said.state in WAITS and traces.claim is None:
        return Sighting(key=key, presence=Presence.PENDING, evidence=evidence)
    return _sight_running(key, evidence, traces)


def _sight_running(key: AttemptKey, evidence: str, traces: Traces) -> Sighting:
    replicas = tuple(_judge_running(number, evidence, traces) for number in range(traces.replicas))
    return Sighting(key=key, presence=Presence.RUNNING, evidence=evidence, replicas=replicas)


def _describe(app: str | None, said: AppStatus | None) -> str:
    if app is None:
        return "torchx's answer to its submission was lost"
    if said is None:
        return f"torchx does not know app {app}"
    words = f" ({said.words})" if said.words and said.words != said.state else ""
    return f"app {app} is {said.state}{words}"


def _is_record_awaited(traces: Traces) -> bool:
    return any(one.recorded and one.replica not in traces.recorded for one in traces.departures.values())


def _judge_by_traces(key: AttemptKey, evidence: str, traces: Traces, context: Context, *, is_known: bool) -> Sighting:
    """Judge an attempt of which torchx says nothing, for example because its runner has ended since."""
    if traces.claim is None:  # it may wait in a queue
        presence = Presence.ABSENT if context.settled and not is_known else Presence.UNKNOWN
        return Sighting(key=key, presence=presence, evidence=f"{evidence}, and none of its agents has begun")
    if not traces.alive:
        return _sight_gone(key, evidence, traces)
    advice = "; torchx cannot end them, so end them by hand" if context.ours and not is_known else ""
    return _sight_running(key, f"{evidence}, but its nodes still touch their files{advice}", traces)


def _judge_running(replica: int, evidence: str, traces: Traces) -> ReplicaSighting:
    departure = traces.departures.get(replica)
    if departure is not None:
        return sight_departed(departure, traces.recorded)
    if replica in traces.ever_alive - traces.alive:
        words = f"replica {replica}'s node no longer touches its file; {evidence}"
        return ReplicaSighting(replica=replica, liveness=Liveness.UNKNOWN, evidence=words)
    return ReplicaSighting(replica=replica, liveness=Liveness.ALIVE, evidence=f"replica {replica}: {evidence}")


def _judge_over(key: AttemptKey, evidence: str, traces: Traces, context: Context) -> Sighting:
    if not context.settled or traces.alive - traces.departures.keys() - traces.recorded:
        words = f"{evidence}; the exit records of its agents may still appear"
        return Sighting(key=key, presence=Presence.UNKNOWN, evidence=words)
    began = traces.claim is not None or bool(traces.recorded)
    words = f"{evidence}, and it ended before any agent started" + (
        f": {context.last_words}" if context.last_words else ""
    )
    never = None if began or context.ours else Failure(kind=FailureKind.INFRASTRUCTURE, message=words)
    return _sight_gone(key, evidence, traces, never)


def _sight_gone(key: AttemptKey, evidence: str, traces: Traces, cause: Failure | None = None) -> Sighting:
    replicas = tuple(
        ReplicaSighting(
            replica=number,
            liveness=Liveness.DEAD,
            evidence=_describe_end(number, evidence, traces),
        )
        for number in range(traces.replicas)
    )
    return Sighting(key=key, presence=Presence.GONE, evidence=evidence, replicas=replicas, cause=cause)


def _describe_end(replica: int, evidence: str, traces: Traces) -> str:
    if replica in traces.recorded:
        return f"replica {replica}'s agent left its record; {evidence}"
    if replica in traces.departures:
        return sight_departed(traces.departures[replica], traces.recorded).evidence
    return f"replica {replica}'s agent left no record; {evidence}"
