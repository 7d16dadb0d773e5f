"""TensorBoard files, if a job asks for them: rank 0's metrics of steps and evaluations, as scalars.

All generations write to one folder. Each passes its first step as `purge_step`, so that TensorBoard drops later steps
of earlier generations and shows no step twice.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from torch.utils.tensorboard import SummaryWriter

FOLDER = "tensorboard"
_EVERY_S = 10  # the flush interval
_MOST_UNWRITTEN = 1000  # steps in the queue before a slow disk delays training


class TensorBoardFiles:
    """`notice` receives one sentence if files cannot be written. Training continues without them.

    The library is imported after the first step, so that no restart waits for it.
    """

    def __init__(self, folder: Path, notice: Callable[[str], None]) -> None:
        self._folder, self._notice = folder, notice
        self._writer: SummaryWriter | None = None
        self._is_open = False

    def write(self, step: int, metrics: Mapping[str, float]) -> None:
        if not self._is_open:
            self._writer, self._is_open = self._open(step), True
        self._try(lambda writer: _add(writer, step, metrics))

    def close(self) -> None:
        self._try(lambda writer: writer.close())

    def _open(self, first_step: int) -> SummaryWriter | None:
        try:
            from torch.utils.tensorboard import SummaryWriter  # noqa: PLC0415  # of an extra, and slow to import

            where = str(self._folder)
            return SummaryWriter(where, purge_step=first_step, max_queue=_MOST_UNWRITTEN, flush_secs=_EVERY_S)
        except ImportError as error:
            advice = "pip install 'elastic-orchestrator[tensorboard]' where the job runs"
            self._notice(f"no TensorBoard files: {error}; {advice}")
        except OSError as error:
            self._notice(f"no TensorBoard files: {self._folder} cannot be written: {error.strerror}")
        except Exception as error:  # noqa: BLE001  # incompatible libraries: train without charts
            self._notice(f"no TensorBoard files: {type(error).__name__}: {error}")
        return None

    def _try(self, action: Callable[[SummaryWriter], None]) -> None:
        if self._writer is None:
            return
        try:
            action(self._writer)
        except Exception as error:  # noqa: BLE001  # the library's thread ends on a full disk
            self._writer = None
            self._notice(f"no more TensorBoard files: {type(error).__name__}: {error}")


def _add(writer: SummaryWriter, step: int, metrics: Mapping[str, float]) -> None:
    """Write a step in one record: this takes a third of the time of one call for each scalar."""
    from tensorboard.compat.proto.summary_pb2 import Summary  # noqa: PLC0415

    values = [Summary.Value(tag=name, simple_value=value) for name, value in metrics.items()]
    writer.file_writer.add_summary(Summary(value=values), step)  # type: ignore[attr-defined]  # torch's types say None
