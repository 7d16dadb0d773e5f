"""Whether the learning rate still fits after the batch size changed since the restored snapshot. Pure."""

from __future__ import annotations

import math
from collections.abc import Mapping

from trainer.contract.config import TrainerConfig

_TOLERANCE = 1.1  # a rounded rate counts as equal


def advise_batch(saved: Mapping[str, object], config: TrainerConfig, *, has_own_rate: bool = False) -> str | None:
    """A sentence if the saved configuration had another batch per step, in samples or in tokens.

    `has_own_rate`: the user's own optimizer does not use the configuration's rate.
    For k times the batch a rate between sqrt(k) and k times as high is expected: by the square root for adaptive
    optimizers (Malladi et al., 2022), in proportion for plain descent (Goyal et al., 2017).
    """
    before, now = _size(saved.get("global_batch"), saved.get("seq_len")), _size(config.global_batch, config.seq_len)
    if before is None or now is None or before == now:
        return None
    unit = "tokens" if saved.get("seq_len") != config.seq_len else "samples"
    sizes = (before, now) if unit == "tokens" else (saved["global_batch"], config.global_batch)
    sentence = f"a step's batch was {sizes[0]} {unit} and is {sizes[1]}"
    rate = saved.get("learning_rate")
    if has_own_rate or not isinstance(rate, float) or not rate:
        return f"{sentence}: does the learning rate still fit?"
    root, proportion = rate * math.sqrt(now / before), rate * now / before
    low, high = sorted((root, proportion))
    if low / _TOLERANCE <= config.learning_rate <= high * _TOLERANCE:
        return f"{sentence}, and the learning rate follows: {rate:g} → {config.learning_rate:g}"
    kept = "is still" if config.learning_rate == rate else f"was {rate:g} and is"
    return (
        f"{sentence}, but the learning rate {kept} {config.learning_rate:g}: "
        f"by the square root it would be {root:.2g}, in proportion {proportion:.2g}"
    )


def _size(samples: object, tokens: object) -> int | None:
    return samples * tokens if isinstance(samples, int) and isinstance(tokens, int) else None
