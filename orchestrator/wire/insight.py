"""Where a job's time went, and why it stands as it does."""

from __future__ import annotations

from datetime import datetime

from pydantic import Field

from orchestrator.domain.job.job import JobState
from orchestrator.wire.answers import Answer, Page
from orchestrator.wire.job_views import FailureView
from trainer.contract.chaos import Fault


class StretchView(Answer):
    """So long the job was in one bin with `used` of its `devices`. `stall_s`: of it, training stood still so long for
    snapshots."""

    bin: str
    since: datetime
    until: datetime
    devices: int
    used: int
    attempt: int | None
    generation: int | None
    stall_s: float
    cause: str | None = None  # of a loss: the kind of failure that it goes back to
    chaos: int | None = None  # of a loss: the number of the request for chaos that it came of


class GainView(Answer):
    """What would have spared the job time, from what it measured itself. `device_seconds` null: `sentence` says what is
    not known yet."""

    name: str
    sentence: str
    device_seconds: float | None


class GoodputView(Answer):
    """Where the device time went: `bins`, in device-seconds, add up to `device_seconds`, the job's life so far times
    the devices that it asked for. `goodput` is the productive part of what it held: all but queue and idle time.
    `chaos_s`: of the losses, what faults on purpose cost. `cost` is of what it held, `lost_cost` of what of it was not
    productive; null where no price is set."""

    goodput: float | None
    device_seconds: float
    wall_s: float
    chaos_s: float = 0.0
    bins: dict[str, float]
    stretches: list[StretchView] = Field(default_factory=list)  # the same life, in order
    gains: list[GainView] = Field(default_factory=list)  # the largest first
    cost: float | None = None
    lost_cost: float | None = None
    currency: str | None = None


class ShareView(Answer):
    """A part of the device time, as in GoodputView. `name` null: what belongs to none. `gain_device_seconds`: what
    better intervals of snapshots would have spared its jobs over their whole lives; null where none can be told."""

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
        """What was held and was not productive."""
        return self.held_device_seconds - self.bins.get("productive", 0.0)


class SharesView(Page[ShareView]):
    """The device time between two moments, the largest share first. The shares add up to `total`, but for `jobs`: with
    nodes and causes one job may have a part in several."""

    by: str
    since: datetime
    until: datetime
    currency: str | None
    total: ShareView


class ChaosView(Answer):
    """A fault on purpose: who requested it, and when and in which words an agent told that it had happened."""

    number: int  # of the request
    fault: Fault
    actor: str | None
    at: datetime
    attempt: int
    sentence: str


class CauseView(Answer):
    """The first cause of the newest trouble. `over`: training went on, or ended well, since."""

    failure: FailureView
    at: datetime
    attempt: int
    generation: int | None
    collateral_ranks: list[int]  # which ended with the failed one
    nodes: list[str]  # that have it in their record
    over: bool
    chaos: ChaosView | None = None  # the fault on purpose that it came of
    last_lines: list[str] = Field(default_factory=list)  # of the failed rank's log


class DeedView(Answer):
    """What was done; `rule` names the rule of the policy that fired, where the service did it."""

    at: datetime
    sentence: str
    attempt: int | None
    rule: str | None


class RemedyView(Answer):
    """What is known of such an error: what it usually comes from, and what helps."""

    name: str
    cause: str
    fix: str


class WhyView(Answer):
    """Why a job stands as it does. `verdict`, `lost`, `next` and `quiet` are sentences.

    For a running job whose workers report no steps, `quiet` says when one of them printed last and whether a hang would
    be noticed. `last_output_at` is the time of that output.
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
    avoids: list[str] = Field(default_factory=list)  # sentences: nodes that its next attempt would not use
