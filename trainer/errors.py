"""The errors that end a run with one line for the job's owner, without a traceback."""

from __future__ import annotations


class TrainerError(Exception):
    """Base class. The message is one line: the file or field, what was found, and what to do."""


class DataError(TrainerError):
    """The training data are missing, too small, unreadable or not those of the snapshot."""


class TaskError(TrainerError):
    """The user's task cannot be used: its module, its function, or something that the function returned."""


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
    """A later term has begun, and this process may not commit any more."""


class NonFiniteLoss(TrainerError):
    """Loss or gradient is NaN or infinite."""


class StrategyError(TrainerError):
    """The configuration asks for something that this model, device or group cannot do."""


class UnusedParameters(StrategyError):
    """A step left parameters without a gradient, and `find_unused_parameters` is not set."""


class OutOfMemory(TrainerError):
    """The memory of the device or of the host is exhausted. The message begins with that of the allocator."""


class RankAbsent(TrainerError):
    """Some ranks did not reach a barrier in time."""
