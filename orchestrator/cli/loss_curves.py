"""Compare a loss curve with faults to one without: are they equal, and did the loss fall? Pure."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass

Curve = Mapping[int, float]  # loss by step; the last value of a repeated step


@dataclass(frozen=True, kw_only=True)
class Comparison:
    """The `largest` difference in nats, its `step`, and the decrease (`fallen`) of the disturbed curve."""

    missing: tuple[int, ...]  # steps without a loss in one of the two curves
    largest: float
    step: int
    fallen: float

    def problems(self, *, tolerance: float, least_fall: float = 0.0) -> Iterator[str]:
        """Yield one sentence for each problem. If steps are missing, nothing else is compared."""
        if self.missing:
            some = ", ".join(map(str, self.missing[:5]))
            yield f"there is no loss for {len(self.missing)} steps, such as {some}"
            return
        if not self.largest <= tolerance:  # so that NaN is a problem too
            yield f"the curves differ by {self.largest:.3g} at step {self.step}, by more than {tolerance:g}"
        if not self.fallen > least_fall:
            yield f"the loss fell by {self.fallen:.3f} nats, not by more than {least_fall:g}"


def compare_curves(disturbed: Curve, undisturbed: Curve, *, steps: int) -> Comparison:
    """Compare steps 1 to `steps`, which must be at least 1."""
    wanted = range(1, steps + 1)
    missing = tuple(step for step in wanted if step not in disturbed or step not in undisturbed)
    if missing:
        return Comparison(missing=missing, largest=0.0, step=missing[0], fallen=0.0)
    differences = {step: abs(disturbed[step] - undisturbed[step]) for step in wanted}
    worst = max(differences, key=lambda step: (differences[step] != differences[step], differences[step]))
    return Comparison(missing=(), largest=differences[worst], step=worst, fallen=disturbed[1] - disturbed[steps])
