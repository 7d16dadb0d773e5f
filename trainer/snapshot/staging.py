"""A long-lived thread that copies a state and then writes the copy while training continues.

Nothing here is collective, and the thread starts with the first snapshot. It copies tensors that only an optimizer step
changes during the next forward and backward pass. `wait_until_staged` must return before that step: an update during
the copy would mix two steps in one snapshot, and every checksum would accept it.
"""

from __future__ import annotations

import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from queue import SimpleQueue

import torch
from torch import Tensor
from torch.distributed.checkpoint.metadata import MetadataIndex

from trainer.snapshot.writing import Values
from trainer.worker.torch_compat import copy_each

Write = Callable[["Values | Exception"], None]
Buffer = Callable[[MetadataIndex, Tensor], Tensor]  # memory of the CPU for a tensor


class Stager:
    """The main thread begins and waits for one state at a time. Buffers are reused.

    `device` is the device that the main thread trains on.
    """

    def __init__(self, device: torch.device) -> None:
        self._device = device
        self._tasks: SimpleQueue[tuple[Values, list[MetadataIndex], Write, Buffer] | None] = SimpleQueue()
        self._thread: threading.Thread | None = None
        self._staged, self._done = threading.Event(), threading.Event()
        self._staged.set()
        self._done.set()
        self._ready: torch.cuda.Event | None = None  # on a GPU: the work that was queued before `begin`
        self._buffers: dict[MetadataIndex, Tensor] = {}

    @property
    def is_staged(self) -> bool:
        return self._staged.is_set()

    @property
    def is_busy(self) -> bool:
        return not self._done.is_set()

    def begin(
        self, values: Values, is_steady: Callable[[str], bool], write: Write, buffer: Buffer | None = None
    ) -> None:
        """Copy now what the forward pass may change, copy the rest in the background, and call `write` there.

        `buffer` finds the memory for a copy; by default buffers are reused. `write` receives the copies, or the
        exception of a failed copy. It must not raise.
        """
        assert self._done.is_set(), "one at a time"
        is_host = self._device.type != "cuda"
        self._ready = None if is_host else torch.cuda.current_stream(self._device).record_event()
        tensors = [index for index, value in values.items() if isinstance(value, Tensor)]
        later = [index for index in tensors if is_steady(index.fqn)]
        buffer = buffer or self._buffer
        self._copy(values, [index for index in tensors if not is_steady(index.fqn)], buffer)
        self._staged.clear()
        self._done.clear()
        if self._thread is None:
            self._thread = threading.Thread(target=self._run, name="stager", daemon=True)
            self._thread.start()
        self._tasks.put((values, later, write, buffer))

    def wait_until_staged(self) -> None:
        """Wait until the copies are made. Then the optimizer may change the tensors."""
        self._staged.wait()

    def wait_until_done(self, timeout_s: float | None = None) -> bool:
        """Wait until the state is written, or has failed. Returns False on timeout."""
        return self._done.wait(timeout_s)

    def close(self) -> None:
        """End the thread after what has begun."""
        self._tasks.put(None)

    def _run(self) -> None:
        if self._device.type == "cuda":
            torch.cuda.set_device(self._device)  # a new thread starts on device 0 and would create a context there
        while (task := self._tasks.get()) is not None:
            try:
                self._take(*task)
            except Exception:  # noqa: BLE001  # `write` has reported the failure; the next snapshot needs this thread
                sys.excepthook(*sys.exc_info())
            finally:
                del task  # a sleeping thread must hold no reference to the group
                self._staged.set()
                self._done.set()

    def _take(self, values: Values, later: list[MetadataIndex], write: Write, buffer: Buffer) -> None:
        staged: Values | Exception = values
        try:
            self._copy(values, later, buffer)
        except Exception as error:  # noqa: BLE001  # `write` reports it
            staged = error
        self._staged.set()
        write(staged)

    @torch.no_grad()
    def _copy(self, values: Values, names: list[MetadataIndex], buffer: Buffer) -> None:
        """Replace tensors in `values` by copies, with one call for each device that releases the interpreter lock."""
        sources = [value for index in names if isinstance(value := values[index], Tensor)]
        targets = [buffer(index, source) for index, source in zip(names, sources, strict=True)]
        by_device: dict[torch.device, list[tuple[Tensor, Tensor]]] = {}  # optimizers may keep scalars on the CPU
        for target, source in zip(targets, sources, strict=True):
            by_device.setdefault(source.device, []).append((target, source))
        for device, pairs in by_device.items():
            with _beside_training(device, self._ready):
                copy_each([to for to, _ in pairs], [source for _, source in pairs])
        values.update(zip(names, targets, strict=True))

    def _buffer(self, index: MetadataIndex, source: Tensor) -> Tensor:
        """A reused CPU buffer, pinned for copies from a GPU."""
        found = self._buffers.get(index)
        if found is None or found.shape != source.shape or found.dtype != source.dtype:
            found = torch.empty_like(source, device="cpu", pin_memory=source.is_cuda)
            self._buffers[index] = found
        return found


@contextmanager
def _beside_training(device: torch.device, ready: torch.cuda.Event | None) -> Iterator[None]:
    """On a GPU, run the block on a separate stream after `ready`, and synchronize. On the CPU, do nothing."""
    if ready is None or device.type != "cuda":
        yield
        return
    stream = torch.cuda.Stream(device)  # type: ignore[no-untyped-call]
    stream.wait_event(ready)
    with torch.cuda.stream(stream):
        yield
    stream.synchronize()
