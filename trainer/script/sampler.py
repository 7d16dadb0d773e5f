"""A DistributedSampler for scripts that may be restarted on another number of ranks, at any step.

    sampler = ElasticSampler(dataset, batch_size=16)              # samples of one rank in one step of the run
    loader = DataLoader(dataset, batch_size=16, sampler=sampler)
    state = run.restore(model=model, optimizer=optimizer, sampler=sampler)
    step = state.step
    while step < steps:
        for batch in loader:                                      # the rest of the epoch
            ...
            run.step(step, loss=loss)                             # also advances the sampler
            step += 1

Without a restart, each rank gets the same samples as from torch's DistributedSampler. After a restart, the epoch
continues after the last sample that the snapshot has seen. The rest is divided among the ranks that there are now, so
that each sample occurs once. `set_epoch` need not be called. The global batch grows and shrinks with the number of
ranks.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping, Sized

import torch
from torch.utils.data import Dataset, DistributedSampler

_IDLE_PASSES = 3
_SAME = ("length", "seed", "shuffle")


class ElasticSampler(DistributedSampler[int]):
    """`batch_size` is the number of samples that one rank uses for each `run.step`, in all batches of its loader.

    `num_replicas` and `rank` default to those of the environment. If an epoch cannot be divided evenly, its first
    samples are used again, so that all ranks make the same number of steps. With `drop_last` an incomplete step is
    left out instead, as by a loader with `drop_last`.
    """

    def __init__(
        self,
        dataset: Dataset[object],
        *,
        batch_size: int,
        num_replicas: int | None = None,
        rank: int | None = None,
        shuffle: bool = True,
        seed: int = 0,
        drop_last: bool = False,
    ) -> None:
        replicas = int(os.environ.get("WORLD_SIZE", "1")) if num_replicas is None else num_replicas
        own = int(os.environ.get("RANK", "0")) if rank is None else rank
        if not isinstance(dataset, Sized) or len(dataset) == 0:
            raise ValueError(f"dataset: {type(dataset).__name__} has no samples that can be counted")
        if batch_size < 1:
            raise ValueError(f"batch_size: is {batch_size}, must be at least 1")
        super().__init__(dataset, num_replicas=replicas, rank=own, shuffle=shuffle, seed=seed, drop_last=drop_last)
        self._length, self._step_samples = len(dataset), batch_size * replicas
        if drop_last and self._step_samples > self._length:
            raise ValueError(f"dataset: has {self._length} samples, one step of all ranks takes {self._step_samples}")
        self._seen = 0  # samples of this epoch that are part of a step
        self._passes: tuple[int, int] = (-1, 0)  # where the newest pass began, and how many have begun there

    def __iter__(self) -> Iterator[int]:
        self._refuse_standstill()
        order = self._order()
        left = order[self._seen :]
        if self.drop_last:
            left = left[: len(left) // self._step_samples * self._step_samples]
        missing = -len(left) % self.num_replicas
        left += (order * (missing // len(order) + 1))[:missing]
        return iter(left[self.rank :: self.num_replicas])

    def _refuse_standstill(self) -> None:
        """Raise RuntimeError if passes over the end of an epoch make no step: they would never end."""
        place, passes = self._passes
        self._passes = self._seen, passes + 1 if place == self._seen else 1
        if self._length - self._seen < self._step_samples and self._passes[1] >= _IDLE_PASSES:
            raise RuntimeError(
                f"sampler: {self._passes[1]} passes over the last {self._length - self._seen} samples of epoch "
                f"{self.epoch} completed no step; give the sampler and its DataLoader the same drop_last"
            )

    def __len__(self) -> int:
        """The remaining samples of this epoch, for this rank."""
        left = self._length - self._seen
        if self.drop_last:
            return left // self._step_samples * (self._step_samples // self.num_replicas)
        return -(-left // self.num_replicas)

    def step_done(self) -> None:
        """Count a step. `run.step` calls this on a sampler that was passed to `restore`."""
        self._seen = min(self._seen + self._step_samples, self._length)
        if self._seen == self._length or (self.drop_last and self._length - self._seen < self._step_samples):
            self.set_epoch(self.epoch + 1)

    def set_epoch(self, epoch: int) -> None:
        """Begin an epoch. Does nothing if it is the current one."""
        if epoch != self.epoch:
            self._seen = 0
        super().set_epoch(epoch)

    def state_dict(self) -> dict[str, int]:
        """The position of the run in its data. Equal on every rank."""
        return {"epoch": self.epoch, "seen": self._seen, **self._identity()}

    def load_state_dict(self, state: Mapping[str, int]) -> None:
        """Continue from a position. Raises ValueError if it is of another order of samples."""
        own = self._identity()
        changed = [f"{name} was {state[name]} and is {own[name]}" for name in _SAME if state[name] != own[name]]
        if changed:
            raise ValueError(f"the snapshot's sampler had another order: {', '.join(changed)}")
        self.epoch, self._seen = state["epoch"], state["seen"]
        if self.drop_last and self._length - self._seen < self._step_samples:
            self.set_epoch(self.epoch + 1)  # too little is left for one step of these ranks

    def _identity(self) -> dict[str, int]:
        return {"length": self._length, "seed": self.seed, "shuffle": int(self.shuffle)}

    def _order(self) -> list[int]:
        """The order of DistributedSampler."""
        if not self.shuffle:
            return list(range(self._length))
        generator = torch.Generator()
        generator.manual_seed(self.seed + self.epoch)
        return [int(index) for index in torch.randperm(self._length, generator=generator).tolist()]
