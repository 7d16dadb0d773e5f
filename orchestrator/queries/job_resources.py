"""What the ranks of a job use and used, from the samples that its agents wrote."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from orchestrator.configured_cluster import Cluster
from orchestrator.domain.explanation.newest_cause import Cause
from orchestrator.domain.job.attempt import Attempt
from orchestrator.domain.job.job import Job
from orchestrator.domain.observation.last_samples import find_minute
from orchestrator.domain.observation.rank_series import Newest, Series, build_series
from orchestrator.ports.clock import Clock
from orchestrator.queries.resource_files import SamplesRead, read_samples
from orchestrator.store.history_reader import HistoryReader
from orchestrator.store.job_reader import JobReader
from orchestrator.wire.history_views import GenerationStartView, RankSeriesView, RankUseView, ResourcesView
from trainer.contract.resource_sample import LastMinute, RankSample

_ATTEMPTS_PAGE = 200


class Resources:
    """Every method raises NotFound for an unknown job, and StoreUnavailable."""

    def __init__(self, jobs: JobReader, history: HistoryReader, clusters: Mapping[str, Cluster], clock: Clock) -> None:
        self._jobs, self._history, self._clusters, self._clock = jobs, history, clusters, clock

    def show(self, job_id: str, *, points: int, rank: int | None = None) -> ResourcesView:
        """Return series of at most `points` times. Without `rank`, of the ranks that use the most memory.

        Empty if there are no samples, for example because torchrun starts the workers. Raises OSError.
        """
        found = self._read(job_id, self._jobs.log_context(job_id).cluster, self._attempts(job_id))
        return _view_of(build_series(found.taken, points=points, rank=rank), partial=found.partial)

    def find_last_minute(self, job: Job, attempts: Sequence[Attempt], cause: Cause) -> tuple[int, LastMinute] | None:
        """Return the last minute of the rank that ran out of memory, or of the rank that used the most, and the rank.

        It is for failures without a record of an agent, because the kernel can kill the agent with its ranks.
        None without samples. Raises OSError.
        """
        own = [each for each in attempts if each.key.number == cause.attempt]
        return find_minute(self._read(job.id, job.spec.cluster, own).taken, cause.failure, cause.generation)

    def _read(self, job_id: str, cluster_name: str, attempts: Sequence[Attempt]) -> SamplesRead:
        cluster = self._clusters.get(cluster_name)
        if cluster is None:
            return SamplesRead([], partial=False)
        return read_samples(cluster.folder(job_id), attempts, self._clock.now())

    def _attempts(self, job_id: str) -> Sequence[Attempt]:
        """Return all attempts, newest first."""
        attempts: list[Attempt] = []
        cursor: str | None = None
        while True:
            page, cursor = self._history.attempts(job_id, limit=_ATTEMPTS_PAGE, cursor=cursor)
            attempts += [each.attempt for each in page]
            if cursor is None:
                return attempts[::-1]


def _view_of(series: Series, *, partial: bool) -> ResourcesView:
    return ResourcesView(
        at=list(series.at),
        ranks=[_view_of_rank(rank, samples) for rank, samples in series.samples.items()],
        sampled_ranks=series.ranks,
        starts=[GenerationStartView.model_validate(each) for each in series.starts],
        newest=[_view_of_use(each) for each in series.newest],
        partial=partial,
    )


def _view_of_rank(rank: int, samples: Sequence[RankSample | None]) -> RankSeriesView:
    return RankSeriesView(
        rank=rank,
        memory_bytes=[None if each is None else each.memory_bytes for each in samples],
        cpu_cores=[None if each is None else each.cpu_cores for each in samples],
        gpu_memory_bytes=[None if each is None else each.gpu_memory_bytes for each in samples],
        gpu_utilization=[None if each is None else each.gpu_utilization for each in samples],
    )


def _view_of_use(newest: Newest) -> RankUseView:
    taken, sample = newest.taken, newest.sample
    return RankUseView(
        rank=sample.rank,
        attempt=taken.attempt,
        generation=taken.generation,
        at=taken.at,
        memory_bytes=sample.memory_bytes,
        cpu_cores=sample.cpu_cores,
        gpu_memory_bytes=sample.gpu_memory_bytes,
        gpu_utilization=sample.gpu_utilization,
    )
