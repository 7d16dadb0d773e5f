"""A process that runs a script's training function again after it has lost a peer: see `trainer.supervised.reenter`."""

from __future__ import annotations

import gc
import random
import sys
import threading
import traceback
from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager, nullcontext
from typing import ClassVar, TypeVar

import torch
import torch.distributed as dist

from trainer.contract.env import WorkerPlace
from trainer.contract.manifest import Manifest
from trainer.elastic.health.stack_frames import Frame, waits_for_peers
from trainer.elastic.workers.reentry import Reentry, train_again
from trainer.script.completed_step import CompletedStep
from trainer.snapshot.departure import Departure
from trainer.snapshot.handover import Handover
from trainer.worker.lost_peer import is_end_of_group
from trainer.worker.signals import StopFlag
from trainer.worker.torch_compat import release_process_groups

T = TypeVar("T")


def run_again(train: Callable[[], T], place: WorkerPlace, reentry: Reentry) -> T:
    """Call `train` in one generation after another."""
    stop, generators = StopFlag(), Generators()

    def train_once(place: WorkerPlace) -> T:
        Survivor.current = survivor = Survivor(place, reentry, stop)
        with Departure(reentry, place.generation, survivor.hand_over, survivor.changing) as departure:
            try:
                return train()
            except RuntimeError as error:
                if reentry.can_stay and is_end_of_group(error):
                    departure.leave()
                    leave_group(error)
                raise
            finally:
                Survivor.current = None

    def forget() -> None:
        generators.reset()
        _forget_compiled()

    return train_again(train_once, place, reentry, is_stopped=lambda: stop.is_set, forget=forget)


class Generators:
    """The states of the random generators now, before training: those that a new process begins with."""

    def __init__(self) -> None:
        self._python, self._torch = random.getstate(), torch.get_rng_state()
        self._numpy = sys.modules["numpy"].random.get_state() if "numpy" in sys.modules else None

    def reset(self) -> None:
        random.setstate(self._python)
        torch.set_rng_state(self._torch)
        if self._numpy is not None:
            sys.modules["numpy"].random.set_state(self._numpy)


class Survivor:
    """One generation of this process. `stop` belongs to the process: a signal may come between two generations."""

    current: ClassVar[Survivor | None] = None

    def __init__(self, place: WorkerPlace, reentry: Reentry, stop: StopFlag) -> None:
        self.stop, self.changing = stop, threading.Lock()
        self._thread = threading.get_ident()
        self._generation, self._reentry = place.generation, reentry
        self._handover = Handover(place, is_wanted=True)
        self._state: CompletedStep | None = None
        self._describe: Callable[[int], Manifest] | None = None

    @property
    def fingerprint(self) -> int:
        """Of what the ranks must agree on. 0 if nothing is handed over."""
        return 0 if self._state is None else self._state.fingerprint

    @property
    def must_leave_group(self) -> bool:
        """Whether the agent knows that a peer is lost, while this rank waits for files."""
        return self._reentry.can_stay and self._reentry.has_order

    def keep(self, objects: Mapping[str, object], step: int, describe: Callable[[int], Manifest]) -> None:
        """Hand these objects over from now on. They have their values after `step` completed steps.

        `describe` returns the manifest of a state after a number of steps.
        """
        if self._state is not None:
            self._state.close()
        self._state, self._describe = CompletedStep(objects, step, self.changing), describe

    def note_update(self, done: int) -> None:
        """The script has completed `done` steps. Before the ranks agree on what follows."""
        if self._state is not None:
            self._state.note(done)

    def note_step(self, step_s: float, *, is_equal: bool) -> None:
        """All ranks have completed a step. `is_equal` says whether all have the same fingerprint."""
        self._handover.free()
        if self._state is not None and is_equal:
            self._state.note_agreed()
        elif self._state is not None and not self._state.why_not:
            self._state.refuse("the objects differ between ranks")
        if dist.is_initialized():
            self._reentry.note_step(self._generation, step_s)

    def evaluating(self) -> AbstractContextManager[None]:
        return nullcontext() if self._state is None else self._state.evaluating()

    def hand_over(self) -> None:
        """Write the state of the last completed step for the next generation, if there is one. Not collective.

        Another thread than the script's writes it only while the script hangs in a collective or a backward pass:
        elsewhere it may change its objects, in ways that nobody notices.
        """
        state, describe, self._state = self._state, self._describe, None
        if state is None or describe is None:
            return
        if threading.get_ident() != self._thread:
            state.is_at_rest = lambda: _waits_for_peers(self._thread)
        if state.why_not:
            print(f"the state is not handed over: {state.why_not}", file=sys.stderr, flush=True)
        else:
            self._handover.write(state, lambda: describe(state.step))
        state.close()


def _waits_for_peers(thread: int) -> bool:
    frame = sys._current_frames().get(thread)  # documented
    if frame is None:
        return False
    return waits_for_peers([Frame(frame.f_code.co_filename, frame.f_lineno, frame.f_code.co_name)])


def leave_group(error: BaseException | None) -> None:
    """Destroy the process groups, and clear the variables of all functions that the error ended.

    What still refers to a group is gone when the group is destroyed: see `trainer.worker.group.process_group`.
    """
    seen: set[int] = set()
    while error is not None and id(error) not in seen:
        seen.add(id(error))
        traceback.clear_frames(error.__traceback__)
        error = error.__cause__ or error.__context__
    gc.collect()
    if dist.is_initialized():
        dist.destroy_process_group()
    release_process_groups()


def _forget_compiled() -> None:
    """torch compiles the same code only a few times, and then not at all."""
    if "torch._dynamo" in sys.modules:
        torch.compiler.reset()
