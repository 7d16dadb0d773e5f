"""What a curve has to be: whole, near the undisturbed one, falling, and made of each sample as often as of any."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass

LEAST_FALL = 1.0  # nats: a curve that stands still proves nothing


@dataclass(frozen=True)
class Verdict:
    case: str
    trial: str
    compared: int  # steps after the first restore
    largest: float  # difference, relative to the undisturbed loss
    limit: float
    first_loss: float
    last_loss: float
    samples_exact: bool
    is_naive: bool

    @property
    def holds(self) -> bool:
        """The naive one has to miss the limit by far: a comparison that it passes is worth nothing."""
        if self.is_naive:
            return self.largest > 100 * self.limit
        return self.largest <= self.limit and self.first_loss - self.last_loss > LEAST_FALL and self.samples_exact


def largest_difference(curve: dict[int, float], reference: dict[int, float], after: int) -> float:
    """Relative, over the steps after `after`. Raises KeyError for a curve that lacks one of them."""
    steps = [step for step in reference if step > after]
    return max(abs(curve[step] - reference[step]) / reference[step] for step in steps)


def is_exact(seen: list[str], windows: list[str]) -> bool:
    """Whether whole epochs were seen: every window of the data, each as often as it is in them."""
    epochs, rest = divmod(len(seen), len(windows))
    return rest == 0 and Counter(seen) == Counter(windows * epochs)
