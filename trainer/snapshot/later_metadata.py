"""Read the metadata of snapshots that a later torch wrote."""

from __future__ import annotations

from functools import wraps
from typing import Any

from torch.distributed.checkpoint.metadata import TensorProperties


def read_later_metadata() -> None:
    """Make DCP read a `.metadata` that a later torch wrote, with more properties of each tensor.

    2.15 added strides to the pickled state of `TensorProperties`, and 2.8 to 2.14 refuse a state that is longer than
    their own. Unknown properties are left out: the trainer writes contiguous tensors.
    """
    sample: Any = TensorProperties()
    own: Any = TensorProperties.__setstate__
    known = len(sample.__getstate__())
    if hasattr(own, "__wrapped__"):
        return

    @wraps(own)
    def accept(properties: TensorProperties, state: tuple[Any, ...]) -> None:
        own(properties, state[:known])

    TensorProperties.__setstate__ = accept  # type: ignore[method-assign]
