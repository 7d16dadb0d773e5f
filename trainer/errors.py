"""The errors that end a run with one line for the job's owner, without a traceback."""

from __future__ import annotations


class TrainerError(Exception):
    """Base class. The message is one line: the file or field, what was found, and what to do."""


class DataError(TrainerError):
    """The training data are missing, too small, unreadable or not those of the snapshot."""


class TaskError(TrainerError):
    """The user's task cannot be used: its module, its function, or the function's result is wrong."""


class DeviceError(TrainerError):
    """This worker has no device, or shares one."""


class SnapshotError(TrainerError):
    """A snapshot cannot be read or written."""


class DamagedSnapshot(SnapshotError):
    """The files of a committed snapshot have changed. `file` is the first damaged one."""

    def __init__(self, file: str, message: str) -> None:
        super().__init__(file, message)
        self.file = file
        self.message = message

    def __str__(self) -> str:
        return f"{self.file}: {self.message}"


class StaleTerm(TrainerError):
    """A later term has begun, so this process may no longer commit."""


class NonFiniteLoss(TrainerError):
    """Loss or gradient is NaN or infinite."""


class StrategyError(TrainerError):
    """The configuration requires something that this model, device or group does not support."""


class UnusedParameters(StrategyError):
    """A step left parameters without a gradient, and `find_unused_parameters` is not set."""


class OutOfMemory(TrainerError):
    """Device or host memory is exhausted. The message begins with the allocator's message."""


class RankAbsent(TrainerError):
    """Some ranks did not reach a barrier in time."""
