"""Explain why workers of this node died, and find the failure that came first."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from dataclasses import replace

from trainer.contract import layout
from trainer.contract.failure import Failure, FailureKind, is_collateral, is_echo, signal_name
from trainer.elastic.health.oom import count_oom_kills, read_oom_kills
from trainer.elastic.health.postmortem import Death, Finding, Steps, find_failure, first_cause, read_steps
from trainer.elastic.records.record import Record
from trainer.elastic.resource_sampler import ResourceSampler
from trainer.elastic.workers.local_workers import LocalWorkers

# A worker can die of the loss of a peer before the agent sees the peer's own death. Wait this long for the cause.
_GRACE_S = 0.3
_LOOK_EVERY_S = 0.02


class Causes:
    """Explains deaths by what the workers left behind. Without a `record`, it knows neither steps nor patterns.

    `count_spares_ended` returns how many spare workers have ended so far. The kernel's OOM killer chooses them first.
    """

    def __init__(
        self, record: Record | None, sampler: ResourceSampler | None, count_spares_ended: Callable[[], int]
    ) -> None:
        self._record, self._sampler, self._count_spares_ended = record, sampler, count_spares_ended
        self._oom_kills: int | None = None  # the count before the workers started
        self._spares_ended = 0  # by then

    def begin(self) -> None:
        """Call this before the workers of a generation start."""
        self._oom_kills, self._spares_ended = read_oom_kills(), self._count_spares_ended()

    def read_steps(self) -> Steps:
        """Read the progress journal. There are no steps outside a job."""
        return Steps() if self._record is None else read_steps(self._record.incarnation_dir / layout.PROGRESS)

    def find(self, deaths: list[Death], steps: Mapping[int, int], local: LocalWorkers) -> Failure:
        """Return the first failure. Waits up to 0.3 s for it if all known deaths only follow from others.

        `steps` has the highest step that each rank completed in this generation.
        """
        return self._add_last_minute(first_cause(self._explain(deaths, steps, local)))

    def _explain(self, deaths: list[Death], steps: Mapping[int, int], local: LocalWorkers) -> list[Finding]:
        policy = None if self._record is None else self._record.policy
        patterns = () if policy is None else policy.patterns
        deadline = time.monotonic() + _GRACE_S
        while True:
            findings = [
                find_failure(death, steps, patterns=patterns, oom_kills=self._count_oom_kills()) for death in deaths
            ]
            everyone = len(deaths) == len(local.processes)
            has_cause = any(not (is_collateral(f.failure) or is_echo(f.failure)) for f in findings)
            if everyone or has_cause or time.monotonic() > deadline:
                return findings
            time.sleep(_LOOK_EVERY_S)
            deaths = local.find_deaths()

    def _count_oom_kills(self) -> int:
        """Kills of workers since they started."""
        return max(0, count_oom_kills(self._oom_kills) - (self._count_spares_ended() - self._spares_ended))

    def _add_last_minute(self, failure: Failure) -> Failure:
        """If a rank ran out of memory, add what it used in its last minute."""
        of_gpu = failure.kind is FailureKind.DEVICE_OOM
        if self._sampler is None or failure.rank is None or not (of_gpu or failure.kind is FailureKind.HOST_OOM):
            return failure
        found = self._sampler.find_last_minute(failure.rank, of_gpu=of_gpu)
        was_killed = failure.exit_code is not None and signal_name(failure.exit_code) == "SIGKILL"
        if found is not None and not (of_gpu or was_killed):
            found = replace(found, limit_bytes=None)  # a MemoryError can come from another limit, as of setrlimit(2)
        return replace(failure, last_minute=found)
