"""TensorBoard's files, where a job asks for them: what rank 0 tells of steps and evaluations, one scalar each.

All generations write into one folder. Each begins with its first step, and TensorBoard then forgets what an earlier one
wrote from there on (`purge_step`): no step shows twice.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from torch.utils.tensorboard import SummaryWriter

FOLDER = "tensorboard"
_EVERY_S = 10  # how often what was added is written out
_MOST_UNWRITTEN = 1000  # steps; a slow disk holds training up only behind these


class Board:
    """`notice` gets one sentence when there can be no files, or no more of them: training goes on without.

    The library is imported behind the first step, so that no restart waits for it.
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
        except Exception as error:  # of libraries that do not fit together: no chart is worth a run
            self._notice(f"no TensorBoard files: {type(error).__name__}: {error}")
        return None

    def _try(self, action: Callable[[SummaryWriter], None]) -> None:
        if self._writer is None:
            return
        try:
            action(self._writer)
        except Exception as error:  # of the library's own thread, which a full disk ends for good
            self._writer = None
            self._notice(f"no more TensorBoard files: {type(error).__name__}: {error}")


def _add(writer: SummaryWriter, step: int, metrics: Mapping[str, float]) -> None:
    """All of a step in one record: a third of the time that a call for each takes."""
    from tensorboard.compat.proto.summary_pb2 import Summary  # noqa: PLC0415

    values = [Summary.Value(tag=name, simple_value=value) for name, value in metrics.items()]
    writer.file_writer.add_summary(Summary(value=values), step)  # type: ignore[attr-defined]  # torch's types say None
