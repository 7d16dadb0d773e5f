"""Every way in which a run ends by itself: one line for the job's owner, no traceback needed."""

from __future__ import annotations


class TrainerError(Exception):
    """Base of all. The message is one line that names the file or field, what was found and what to do."""


class DataError(TrainerError):
    """The training data are missing, too small, unreadable or not those of the snapshot."""


class TaskError(TrainerError):
    """The user's task cannot be used: its module, its function, or something that the function returned."""


class DeviceError(TrainerError):
    """This worker has no device of its own."""


class SnapshotError(TrainerError):
    """A snapshot that is needed cannot be read or written."""


class DamagedSnapshot(SnapshotError):
    """A committed snapshot whose files are not those that were committed. `file` is the first damaged one."""

    def __init__(self, file: str, message: str) -> None:
        super().__init__(file, message)
        self.file = file
        self.message = message

    def __str__(self) -> str:
        return f"{self.file}: {self.message}"


class StaleTerm(TrainerError):
    """A later term has begun: this process may no longer commit anything."""


class NonFiniteLoss(TrainerError):
    """Loss or gradient is NaN or infinite."""


class StrategyError(TrainerError):
    """The configuration asks for something that this model, device or group cannot do."""


class UnusedParameters(StrategyError):
    """A step left parameters without a gradient, and ddp was not told that it may."""


class OutOfMemory(TrainerError):
    """The device's memory or the host's ran out. The allocator's own words come first."""


class RankAbsent(TrainerError):
    """Some ranks did not come to a meeting in time."""
