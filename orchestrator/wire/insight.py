"""Where a job's time went, and why it is in its state."""

from __future__ import annotations

from datetime import datetime

from pydantic import Field

from orchestrator.domain.accounting.goodput import LOSSES
from orchestrator.domain.job.job import JobState
from orchestrator.wire.answers import Answer, Page
from orchestrator.wire.job_views import FailureView
from trainer.contract.chaos import Fault


class StretchView(Answer):
    """A time in which the job was in one bin and used `used` of its `devices`. In `stall_s` of it, training waited for
    snapshots."""

    bin: str
    since: datetime
    until: datetime
    devices: int
    used: int
    attempt: int | None
    generation: int | None
    stall_s: float
    cause: str | None = None  # for a loss, the kind of failure that caused it
    chaos: int | None = None  # for a loss, the number of the request for chaos that caused it


class GainView(Answer):
    """What would have saved the job time, computed from its own measurements. If `device_seconds` is null, `sentence`
    says what is not known yet."""

    name: str
    sentence: str
    device_seconds: float | None


class RestartsView(Answer):
    """The restarts of a job whose state came from one `source`, and what they cost.

    `source` is `survivor`, `memory`, `buddy` (a mirror on another node), `disk`, or `other` if no restore was reported.
    `none` has costs that no restart has followed. `steps_repeated` counts the repeated steps of all restarts but
    `steps_unknown` of them. `mean_to_next_step_s` is the mean time from the end of a generation until the next step is
    complete, where it is known.
    """

    source: str
    restarts: int
    steps_repeated: int
    steps_unknown: int
    recovering_device_seconds: float
    re_done_device_seconds: float
    mean_to_next_step_s: float | None


class GoodputView(Answer):
    """Where the device time of a job went.

    `device_seconds` is the job's life so far times the devices that it requests. `bins`, in device-seconds, add up to
    it. The job held its devices in all bins but `queue` and `idle`; `goodput` is the productive part of the held time.
    `chaos_s` is the part of the losses that injected faults caused. `cost` is the price of the held time and
    `lost_cost` that of the losses: `re_done`, `stalled`, `recovering` and `failed`. Both are null if no price is set.
    """

    goodput: float | None
    device_seconds: float
    wall_s: float
    chaos_s: float = 0.0
    bins: dict[str, float]
    stretches: list[StretchView] = Field(default_factory=list)  # the same time, in order
    gains: list[GainView] = Field(default_factory=list)  # largest first
    restarts: list[RestartsView] = Field(default_factory=list)  # their costs add up to `recovering` and `re_done`
    cost: float | None = None
    lost_cost: float | None = None
    currency: str | None = None


class ShareView(Answer):
    """A part of the device time, as in GoodputView. The share with `name` null belongs to no group.
    `gain_device_seconds` is what better snapshot intervals would have saved its jobs over their whole lives; null if
    not known."""

    name: str | None
    jobs: int
    device_seconds: float
    held_device_seconds: float
    goodput: float | None
    bins: dict[str, float]
    cost: float | None
    lost_cost: float | None
    gain_device_seconds: float | None

    @property
    def lost_device_seconds(self) -> float:
        return sum(self.bins.get(each, 0.0) for each in LOSSES)


class SharesView(Page[ShareView]):
    """The device time between two times, the largest share first. The shares add up to `total`, except for `jobs`: a
    job may be in several shares if they are by node or by cause."""

    by: str
    since: datetime
    until: datetime
    currency: str | None
    total: ShareView


class ChaosView(Answer):
    """An injected fault: who requested it, and when and how an agent reported it."""

    number: int  # the request's
    fault: Fault
    actor: str | None
    at: datetime
    attempt: int
    sentence: str


class FramesView(Answer):
    """The innermost frames of a rank's saved stacks, such as "step (train.py:3)", innermost first."""

    rank: int
    frames: list[str]


class CauseView(Answer):
    """The first cause of the newest failure. `over`: training has continued or succeeded since."""

    failure: FailureView
    at: datetime
    attempt: int
    generation: int | None
    collateral_ranks: list[int]  # ranks that ended with the failed one
    nodes: list[str]  # nodes that have the failure in their record
    over: bool
    chaos: ChaosView | None = None  # the injected fault that caused it
    last_lines: list[str] = Field(default_factory=list)  # the end of the failed rank's log
    stacks: FramesView | None = None  # of the failed rank, or else of the first rank that ended with it and left some
    memory: str | None = None  # sentences about the rank's memory in its last minute, if it ran out of memory
    continued: str | None = None  # the step and the source of the state that training continued from


class DeedView(Answer):
    """What was done. `rule` names the policy rule that decided it; null if an agent or a person did it."""

    at: datetime
    sentence: str
    attempt: int | None
    rule: str | None


class RemedyView(Answer):
    """The usual cause of a known error, and what helps."""

    name: str
    cause: str
    fix: str


class HolderView(Answer):
    """A job that holds devices. `ends_by` is the latest time at which it is expected to end: at its present speed, or
    at its limit of runtime. Null if that is not known."""

    id: str
    name: str
    state: JobState
    devices: int
    ends_by: datetime | None


class WaitView(Answer):
    """What a queued job waits for to start, or a shrunken job to grow.

    `sentences` are for people. `ahead` is the number of jobs that start before this job. `holders` hold what it waits
    for, the most devices first; `other_devices` are those of jobs that are not listed, such as jobs of other projects.
    `starts_by` is the latest expected start, null if it cannot be derived. `nodes` has the nodes of a running job.
    """

    sentences: list[str]
    ahead: int = 0
    holders: list[HolderView] = Field(default_factory=list)
    other_devices: int = 0
    starts_by: datetime | None = None
    nodes: int | None = None


class WhyView(Answer):
    """Why a job is in its state. `verdict`, `lost`, `next` and `quiet` are sentences.

    For a running job whose workers report no steps, `quiet` says when a worker last printed something and whether a
    hang would be noticed. `last_output_at` is the time of that output.
    """

    job: str
    state: JobState
    verdict: str
    cause: CauseView | None
    deeds: list[DeedView]  # oldest first
    lost: str
    remedy: RemedyView | None
    next: str
    quiet: str | None = None
    last_output_at: datetime | None = None
    avoids: list[str] = Field(default_factory=list)  # sentences on the nodes that the next attempt would avoid
    wait: WaitView | None = None
