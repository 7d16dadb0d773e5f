"""The answers of `why` and `goodput` for one job."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from orchestrator.domain.accounting.breakdown import Prices
from orchestrator.domain.accounting.chronicle import Chronicle, read_life
from orchestrator.domain.accounting.gains import list_gains
from orchestrator.domain.accounting.goodput import Bin, Ledger, Stretch, add_up
from orchestrator.domain.accounting.injections import chaos_us
from orchestrator.domain.accounting.life import Life, lay_out
from orchestrator.domain.accounting.restarts import RestartSum, sum_restarts
from orchestrator.domain.errors import NotFound
from orchestrator.domain.explanation.frames import find_innermost
from orchestrator.domain.explanation.last_minute import tell_last_minute
from orchestrator.domain.explanation.newest_cause import Cause
from orchestrator.domain.explanation.quiet import Output, find_quiet, tell_quiet
from orchestrator.domain.explanation.why import explain
from orchestrator.domain.job.attempt import Attempt
from orchestrator.domain.job.job import Job
from orchestrator.domain.job.rank_stacks import find_saved_at_end
from orchestrator.domain.observation.node_record import Exclusion, describe
from orchestrator.logs.reader import Known, LogRequest, Logs
from orchestrator.ports.clock import Clock
from orchestrator.queries.job_resources import Resources
from orchestrator.queries.waits import Waits
from orchestrator.store.chronicle_reader import ChronicleReader
from orchestrator.store.records import LogContext
from orchestrator.wire.insight import (
    CauseView,
    ChaosView,
    DeedView,
    FramesView,
    GainView,
    GoodputView,
    RemedyView,
    RestartsView,
    StretchView,
    WhyView,
)
from orchestrator.wire.job_views import FailureView
from trainer.contract.failure import FailureKind

_MICROSECONDS = 1e6
_HOURS = 3600 * _MICROSECONDS
_LAST_LINES = 12
_MOST_AVOIDED = 8
_RANKS_TRIED, _STACK_LINES = 4, 400


@dataclass(frozen=True, slots=True)
class Account:
    """The answers of `why` and `goodput`, from one reading."""

    why: WhyView
    goodput: GoodputView


@dataclass(frozen=True, slots=True)
class _Reading:
    """A job's life, read once for both answers."""

    chronicle: Chronicle
    life: Life
    stretches: Sequence[Stretch]
    ledger: Ledger


class Accounts:
    """Every method raises NotFound for an unknown job, and StoreUnavailable."""

    def __init__(
        self,
        chronicles: ChronicleReader,
        logs: Logs,
        resources: Resources,
        clock: Clock,
        prices: Prices | None = None,
        *,
        exclusions: Callable[[str], Sequence[Exclusion]] = lambda _: (),
        waits: Waits,
    ) -> None:
        self._chronicles = chronicles
        self._logs = logs
        self._resources = resources
        self._clock = clock
        self._prices = prices
        self._exclusions = exclusions  # returns the nodes that new attempts on a cluster avoid now
        self._waits = waits

    def goodput(self, job_id: str) -> GoodputView:
        return self._goodput(self._read(job_id))

    def why(self, job_id: str) -> WhyView:
        return self.account(job_id).why

    def account(self, job_id: str) -> Account:
        read = self._read(job_id)
        return Account(self._why(read), self._goodput(read))

    def _read(self, job_id: str) -> _Reading:
        chronicle = self._chronicles.chronicle(job_id)
        life = read_life(chronicle)
        stretches = lay_out(life, self._clock.now())
        return _Reading(chronicle, life, stretches, add_up(stretches))

    def _goodput(self, read: _Reading) -> GoodputView:
        found = _view_of_ledger(read.ledger, read.stretches, read.life)
        if self._prices is None:
            return found
        return _priced(found, self._prices, read.ledger, read.chronicle.job.spec.cluster)

    def _why(self, read: _Reading) -> WhyView:
        chronicle, now = read.chronicle, self._clock.now()
        attempt = find_quiet(chronicle)
        output = None if attempt is None else self._last_output(chronicle.job, attempt)
        quiet = None if attempt is None else tell_quiet(chronicle.job.spec, attempt, output, now)
        why = explain(chronicle, read.life, read.ledger, now, quiet=quiet)
        return WhyView(
            job=chronicle.job.id,
            state=chronicle.job.state,
            verdict=why.verdict,
            cause=None if why.cause is None else self._view_of_cause(chronicle, why.cause),
            deeds=[DeedView.model_validate(action) for action in why.deeds],
            lost=why.lost,
            remedy=None if why.remedy is None else RemedyView.model_validate(why.remedy),
            next=why.next,
            quiet=why.quiet,
            last_output_at=None if output is None else output.at,
            avoids=self._list_avoided(chronicle.job),
            wait=self._waits.find(chronicle.job, now),
        )

    def _list_avoided(self, job: Job) -> list[str]:
        """Return the nodes that the next attempt would avoid. Empty for a job that has ended."""
        if job.state.terminal or not job.spec.supervise.exclude_bad_nodes:
            return []
        return [describe(each) for each in self._exclusions(job.spec.cluster)[:_MOST_AVOIDED]]

    def _view_of_cause(self, chronicle: Chronicle, cause: Cause) -> CauseView:
        return CauseView(
            failure=FailureView.model_validate(cause.failure),
            at=cause.at,
            attempt=cause.attempt,
            generation=cause.generation,
            collateral_ranks=list(cause.collateral_ranks),
            nodes=list(cause.nodes),
            over=cause.over,
            chaos=None if cause.chaos is None else ChaosView.model_validate(cause.chaos),
            last_lines=self._last_lines(chronicle, cause),
            stacks=self._find_stacks(chronicle, cause),
            memory=self._tell_memory(chronicle, cause),
            continued=None if cause.continued is None else str(cause.continued),
        )

    def _last_output(self, job: Job, attempt: Attempt) -> Output | None:
        """Return the last output. None if the files cannot be read."""
        try:
            return self._logs.last_output(job.spec.cluster, attempt)
        except OSError:
            return None

    def _tell_memory(self, chronicle: Chronicle, cause: Cause) -> str | None:
        """Return sentences about the memory of a rank that ran out of it, from the agent's record or its samples."""
        failure = cause.failure
        if failure.kind not in (FailureKind.HOST_OOM, FailureKind.DEVICE_OOM):
            return None
        if failure.rank is not None and failure.last_minute is not None:
            return tell_last_minute(failure.rank, failure.last_minute)
        try:
            found = self._resources.find_last_minute(chronicle.job, chronicle.attempts, cause)
        except (NotFound, OSError):
            return None
        return None if found is None else tell_last_minute(*found)

    def _last_lines(self, chronicle: Chronicle, cause: Cause) -> list[str]:
        """Return the last lines of the failed rank in the generation that failed. Empty if its log is gone.

        Also empty for a fault that somebody requested: the lines do not lead to it.
        """
        rank = cause.failure.rank
        if rank is None or cause.chaos is not None:
            return []
        request = LogRequest(attempt=cause.attempt, rank=rank, generation=cause.generation, tail=_LAST_LINES)
        return self._tail(chronicle, request)

    def _find_stacks(self, chronicle: Chronicle, cause: Cause) -> FramesView | None:
        """Return the stacks that were saved when the failed rank was ended. A stopped one has none, but others may.

        None if the failure has a traceback, which tells the place. Stacks of an earlier request show another moment.
        """
        failed = cause.attempt, cause.generation
        if cause.failure.traceback is not None or failed not in find_saved_at_end(chronicle.events):
            return None
        first = [] if cause.failure.rank is None else [cause.failure.rank]
        for rank in [*first, *cause.collateral_ranks][:_RANKS_TRIED]:
            request = LogRequest(attempt=cause.attempt, rank=rank, stream="stacks", tail=_STACK_LINES)
            frames = find_innermost(self._tail(chronicle, request))
            if frames:
                return FramesView(rank=rank, frames=frames)
        return None

    def _tail(self, chronicle: Chronicle, request: LogRequest) -> list[str]:
        job = chronicle.job
        context = LogContext(
            project=job.spec.project,
            cluster=job.spec.cluster,
            newest=max((each.key.number for each in chronicle.attempts), default=None),
            at_rest=job.at_rest,
        )
        try:
            return self._logs.tail(job.id, request, Known(context, chronicle.events))
        except (NotFound, OSError):
            return []


def _view_of_ledger(ledger: Ledger, stretches: Sequence[Stretch], life: Life) -> GoodputView:
    return GoodputView(
        goodput=ledger.goodput,
        device_seconds=ledger.whole_us / _MICROSECONDS,
        wall_s=sum(each.lasted_us for each in stretches) / _MICROSECONDS,
        chaos_s=chaos_us(stretches) / _MICROSECONDS,
        bins={each.value: ledger.bins.get(each, 0) / _MICROSECONDS for each in Bin},
        stretches=[StretchView.model_validate(each) for each in stretches],
        gains=[
            GainView(
                name=gain.name,
                sentence=gain.sentence,
                device_seconds=None if gain.device_us is None else gain.device_us / _MICROSECONDS,
            )
            for gain in list_gains(life, stretches)
        ],
        restarts=[_view_of_restarts(each) for each in sum_restarts(life, stretches)],
    )


def _view_of_restarts(found: RestartSum) -> RestartsView:
    return RestartsView(
        source=found.source.value,
        restarts=found.restarts,
        steps_repeated=found.repeated,
        steps_unknown=found.unknown,
        recovering_device_seconds=found.recovering_us / _MICROSECONDS,
        re_done_device_seconds=found.re_done_us / _MICROSECONDS,
        mean_to_next_step_s=found.mean_to_next_step_s,
    )


def _priced(found: GoodputView, prices: Prices, ledger: Ledger, cluster: str) -> GoodputView:
    cost, lost_cost = (amount_us / _HOURS * prices.of(cluster) for amount_us in (ledger.held_us, ledger.lost_us))
    return found.model_copy(update={"cost": cost, "lost_cost": lost_cost, "currency": prices.currency})
