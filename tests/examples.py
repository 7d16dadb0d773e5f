"""How many examples a property is tried on: few in `make test`, many in `make nightly` (HYPOTHESIS_PROFILE=long)."""

from __future__ import annotations

import os

LONG = os.environ.get("HYPOTHESIS_PROFILE") == "long"


def examples(few: int, many: int) -> int:
    return many if LONG else few
