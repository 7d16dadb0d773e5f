"""Copies of the state in the memory of the node, taken while training runs: a killed worker costs only the steps since
the newest copy.

Each rank writes its part to two files in turn, so that the older copy stays whole until the newer one is.
A copy begins only when the previous one is whole on all ranks: then the ranks always have a step in common. The files
outlive workers and agents, and end with `elasticrun`. With several nodes, each node mirrors the copies of another one
(elastic/copies), and a copy begins only when the previous one is mirrored, too.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Collection, Mapping
from contextlib import suppress
from pathlib import Path

import torch
import torch.distributed as dist
from torch import Tensor
from torch.distributed.checkpoint.metadata import MetadataIndex

from trainer.contract.config import parse_memory_interval
from trainer.contract.copy_record import CopyFile
from trainer.contract.exit_record import EventKind
from trainer.contract.manifest import Manifest
from trainer.elastic.copies.mirror import MOST_BYTES_PER_S
from trainer.elastic.health.oom import find_shortage
from trainer.snapshot.memory_copy import CopyWriter
from trainer.snapshot.run_state import RunState
from trainer.snapshot.staging import Stager
from trainer.snapshot.writing import Plan, SharedPlan, Values, tensors_in, values_of
from trainer.worker.run import Run

_SHARE = 0.01  # of training time that copies may take by default
_AUTO_SHORTEST_S, _AUTO_LONGEST_S = 1.0, 60.0
_LEAVES_WITHIN_S = 10.0
_MIRRORED_WITHIN_S = 10.0  # in addition to twice the time of the transfer; then copies go on without the mirror
_LOOK_S = 0.001  # for a mirror, while the step waits
_MIRROR_SHARE = 0.1  # of the time that mirrors may read
_BLOCK_BYTES = 512  # of st_blocks (stat(2))


class MemoryTier:
    """Takes copies. The ranks decide together in a step (`is_due` on rank 0, `is_ready` on each), and then all `begin`.

    `describe` returns the manifest of a state.
    """

    def __init__(
        self,
        run: Run,
        *,
        plan: SharedPlan,
        describe: Callable[[RunState], Manifest],
        still_read: Collection[CopyFile] = (),
        must_leave: Callable[[], bool] = lambda: False,
    ) -> None:
        """`still_read` has files that other ranks may still read. `must_leave`: this rank has to leave the group."""
        files, read = run.place.own_copies, {file.path for file in still_read if not file.server}
        is_possible = bool(files) and (run.place.is_on_one_node or bool(run.place.copy_server))
        self._run, self._plan, self._describe, self._must_leave = run, plan, describe, must_leave
        self._interval = parse_memory_interval(run.config.snapshot_memory) if is_possible else None
        # The first copy goes to a file that nobody reads.
        self._files = sorted(files, key=lambda path: path in read)
        self._writers: list[CopyWriter] = []
        self._reserved: Plan | None = None  # the plan that the writers have memory for
        self._stager = Stager(run.device)
        self._begun = 0
        self._last_at = time.monotonic()
        self._waited_s = 0.0  # how long training waited for the newest copy
        self._thread_s = self._thread_clock_s = 0.0  # CPU time of the thread, for the newest copy and for all
        self._mirrored_s = 0.0  # until another node had the newest copy
        self._node_bytes = 0  # of a copy by all ranks of this node
        self._failed = self._lacks_mirror = False

    def __enter__(self) -> MemoryTier:
        return self

    def __exit__(self, *_: object) -> None:
        self.finish()
        self._stager.close()

    def finish(self) -> None:
        """Wait until the copy that was begun is whole."""
        self._stager.wait_until_done(_LEAVES_WITHIN_S)

    def is_ready(self, step: int) -> bool:
        """Whether this rank's previous copy is whole, so that the state after `step` steps may be copied.

        If the interval is in steps, wait for it: on one node every copy that is due is made. If each step has a copy,
        wait for the mirror, too, unless another node was late before.
        """
        if self._interval is None or self._failed:
            return False
        if self._stager.is_busy and self._interval.steps is not None and step % self._interval.steps == 0:
            began = time.monotonic()
            self._stager.wait_until_done()
            self._waited_s += time.monotonic() - began
        while self.is_part_of_step and not self._is_mirrored() and not self._must_leave():
            time.sleep(_LOOK_S)
        return not self._failed and not self._stager.is_busy and self._is_mirrored()

    def _is_mirrored(self) -> bool:
        """Whether another node has the newest copy, if there is another node and it may still take it."""
        if self._run.place.is_on_one_node or not self._begun:
            return True
        took_s = time.monotonic() - self._last_at
        if self._writers[(self._begun - 1) % len(self._writers)].is_mirrored:
            self._mirrored_s = self._mirrored_s or took_s
            return True
        is_late = took_s > _MIRRORED_WITHIN_S + 2 * self._node_bytes / MOST_BYTES_PER_S
        is_late = is_late or (self._lacks_mirror and self.is_part_of_step)
        if is_late and not self._lacks_mirror:
            self._lacks_mirror = True
            self._tell("copies in memory go on without a mirror: the other node has no room, or is slow")
        return is_late

    def is_due(self, step: int, now: float) -> bool:
        """Whether to copy the state after `step` completed steps. Only rank 0 asks."""
        if self._interval is None or self._failed:
            return False
        if self._interval.steps is not None:
            return step % self._interval.steps == 0
        return now - self._last_at >= (self._interval.seconds or self._auto_s())

    def _auto_s(self) -> float:
        cost_s = self._waited_s
        if self._run.device.type == "cpu":
            cost_s += self._thread_s  # the thread takes it from training
        return min(_AUTO_LONGEST_S, max(_AUTO_SHORTEST_S, cost_s / _SHARE, self._mirrored_s / _MIRROR_SHARE))

    @property
    def is_part_of_step(self) -> bool:
        """Whether each step waits for its copy, so that a killed worker costs none that was reported."""
        return self._interval is not None and self._interval.steps == 1

    def take(self, state: RunState) -> None:
        """Copy the state, and wait until all ranks have their part. Collective."""
        plan = self._plan.of(state)
        is_begun = self._begin(state, plan)
        self._stager.wait_until_done()
        if not is_begun and not self._failed:
            self._begin(state, plan)
            self._stager.wait_until_done()
        with self._run.waits.waiting():
            dist.all_reduce(done := torch.zeros((), device=self._run.device))
            done.item()

    def begin(self, state: RunState) -> None:
        """Copy the state, or at first and after a change of the plan only reserve memory for it. Collective."""
        self._begin(state, self._plan.of(state))

    def _begin(self, state: RunState, plan: Plan) -> bool:
        """Return False if this only reserves memory."""
        self._last_at, self._mirrored_s = time.monotonic(), 0.0
        is_begun = plan is self._reserved
        if is_begun:
            self._copy(state, plan)
        else:
            sources = tensors_in(values_of(state, plan))
            self._stager.begin({}, state.is_steady, self._guarded(lambda _: self._reserve(plan, sources)))
        self._waited_s = time.monotonic() - self._last_at
        return is_begun

    def before_update(self, *_: object) -> None:
        """Delay the optimizer's step until its tensors are copied."""
        if self._stager.is_staged:
            return
        began = time.monotonic()
        self._stager.wait_until_staged()
        self._waited_s += time.monotonic() - began

    def _reserve(self, plan: Plan, sources: Mapping[MetadataIndex, Tensor]) -> None:
        held = sum(Path(path).stat().st_blocks * _BLOCK_BYTES for path in self._files)  # since an earlier generation
        own = len(self._files) * sum(source.nbytes for source in sources.values()) - held
        mirrored, ranks = 1 if self._run.place.is_on_one_node else 2, self._run.place.local_world_size
        self._node_bytes = ranks * sum(source.nbytes for source in sources.values())
        shortage = find_shortage(mirrored * own * ranks)
        if shortage is not None:
            raise OSError(shortage)
        writers = self._writers or [CopyWriter(path) for path in self._files]
        for writer in writers:
            writer.reserve(sources)
        self._writers, self._reserved = writers, plan

    def _copy(self, state: RunState, plan: Plan) -> None:
        writer = self._writers[self._begun % len(self._writers)]
        if self._begun == len(self._writers):
            self._free_mirrors()
        self._begun += 1
        manifest, place, metadata = self._describe(state), self._run.place, plan.metadata

        def seal(staged: Values) -> None:
            writer.seal(staged, manifest, part=place.rank, parts=place.world_size, metadata=metadata)

        writer.erase()
        buffer = writer.view if self._run.device.type == "cpu" else None
        self._stager.begin(values_of(state, plan), state.is_steady, self._guarded(seal), buffer)

    def _free_mirrors(self) -> None:
        """Give back the memory of mirrors without a source. This generation has copies of its own by now."""
        place = self._run.place
        if place.is_on_one_node and place.local_rank == 0:
            for path in (path for own in place.mirrors for path in own):
                with suppress(OSError):
                    CopyWriter(path).free()

    def _guarded(self, work: Callable[[Values], None]) -> Callable[[Values | Exception], None]:
        """Nothing that goes wrong here ends training. The ranks take no copy after a failure of any of them."""

        def run(staged: Values | Exception) -> None:
            try:
                if isinstance(staged, Exception):
                    raise staged
                work(staged)
            except Exception as error:  # noqa: BLE001  # an edge
                self._give_up(error)
            clock_s = time.thread_time()
            self._thread_s, self._thread_clock_s = clock_s - self._thread_clock_s, clock_s

        return run

    def _give_up(self, error: Exception) -> None:
        self._failed = True
        self._tell(f"snapshot_memory has no effect: {error}")

    def _tell(self, sentence: str) -> None:
        if self._run.is_first:
            self._run.heartbeat.tell(EventKind.SETTING_IGNORED, sentence, {})
        else:
            print(sentence, file=sys.stderr, flush=True)
