"""Where microbatches come from: what the loop asks for, and what it gets."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Protocol

from trainer.worker.torch_compat import pin


@dataclass(frozen=True)
class Request:
    """One microbatch: `count` samples from position `first` of the endless stream of samples."""

    step: int  # completed optimizer steps before it
    microbatch: int
    first: int
    count: int


@dataclass(frozen=True)
class BadSample:
    """A sample that could not be read. `error` is one line, and says where in the user's code it was raised."""

    index: int  # in the dataset
    position: int  # in the stream
    error: str

    def __str__(self) -> str:
        return f"sample {self.index} of the dataset (position {self.position} of the run) cannot be read: {self.error}"


@dataclass(frozen=True)
class Read:
    """A microbatch on the CPU, and the samples in it that others stand in for. `failure` is set where there is none."""

    batch: object
    skipped: tuple[BadSample, ...] = ()
    failure: str | None = None

    def pin_memory(self) -> Read:
        """What a DataLoader calls when it pins: the same in page-locked memory."""
        return replace(self, batch=pin(self.batch))


class Source(Protocol):
    """Whatever is random in `read` is a function of the request, so that any rank and any process reads the same."""

    @property
    def fingerprint(self) -> dict[str, object]:
        """Equal for equal data; compared between ranks, and with what a snapshot was trained on."""
        ...

    @property
    def micro_batch(self) -> int:
        """Samples of each microbatch."""
        ...

    @property
    def workers(self) -> int | None:
        """How many processes shall read ahead, if the data say so themselves."""
        ...

    def read(self, request: Request) -> Read: ...
