"""Write a line for each optimizer step of an unchanged script. This folder is on the path of its interpreters.

Python imports this module when it starts (https://docs.python.org/3/library/site.html). It does not import torch: it
sets the hook for steps when the script imports torch's optimizers.
"""

import importlib.abc
import importlib.util
import itertools
import os
import sys
import time
from collections.abc import Sequence
from importlib.machinery import ModuleSpec
from types import ModuleType
from typing import Any

_OPTIMIZERS = "torch.optim.optimizer"
_counts = itertools.count(1)


def _tell(optimizer: Any, args: Any, kwargs: Any) -> None:
    """Write a line in the format of user_script.py. The optimizer's own count continues if the script loads it."""
    step, counted = next(_counts), next((state["step"] for state in optimizer.state.values() if "step" in state), None)
    reported = step if counted is None else int(counted)
    rank = os.environ.get("RANK", "0")
    line = f"{time.time():.6f} rank {rank} pid {os.getpid()} step {reported} loss -\n"
    with open(os.environ["RECOVERY_STEPS"], "a") as lines:  # noqa: PTH123  # avoid imports
        lines.write(line)


class _Finder(importlib.abc.MetaPathFinder):
    def find_spec(
        self, name: str, path: Sequence[str] | None = None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        if name != _OPTIMIZERS:
            return None
        sys.meta_path.remove(self)
        spec = importlib.util.find_spec(name)
        if spec is None or spec.loader is None:
            return None
        load = spec.loader.exec_module

        def load_and_hook(module: ModuleType) -> None:
            load(module)
            module.register_optimizer_step_post_hook(_tell)

        spec.loader.exec_module = load_and_hook  # type: ignore[method-assign]
        return spec


if "RECOVERY_STEPS" in os.environ:
    sys.meta_path.insert(0, _Finder())
