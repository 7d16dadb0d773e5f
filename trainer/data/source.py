"""The interface of data sources: requests and microbatches."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Protocol

from trainer.worker.torch_compat import pin


@dataclass(frozen=True)
class Request:
    """A request for one microbatch: `count` samples from position `first` of the infinite stream."""

    step: int  # completed optimizer steps
    microbatch: int
    first: int
    count: int


@dataclass(frozen=True)
class BadSample:
    """An unreadable sample. `error` is one line with the place in the user's code that raised it."""

    index: int  # in the dataset
    position: int  # in the stream
    error: str

    def __str__(self) -> str:
        return f"sample {self.index} of the dataset (position {self.position} of the run) cannot be read: {self.error}"


@dataclass(frozen=True)
class Read:
    """A microbatch on the CPU, and the samples that were replaced. `failure` is set if there is no batch."""

    batch: object
    skipped: tuple[BadSample, ...] = ()
    failure: str | None = None

    def pin_memory(self) -> Read:
        """Copy to page-locked memory. DataLoader calls this."""
        return replace(self, batch=pin(self.batch))


class Source(Protocol):
    """All randomness in `read` is a function of the request: every rank and process reads the same batch."""

    @property
    def fingerprint(self) -> dict[str, object]:
        """Equal for equal data. Compared between ranks, and with the fingerprint in a snapshot."""
        ...

    @property
    def micro_batch(self) -> int:
        """Samples per microbatch."""
        ...

    @property
    def workers(self) -> int | None:
        """The number of read-ahead processes that the data ask for, or None."""
        ...

    def read(self, request: Request) -> Read: ...
