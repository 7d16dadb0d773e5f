"""Put on the path of a script's interpreters: each optimizer step of theirs is told, and the script is not changed.

Python imports this module by itself at its start (https://docs.python.org/3/library/site.html). torch is not imported
here: the step's hook is set once torch's optimizers are.
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
    """A line for a step, in user_script.py's words. The optimizer's own count goes on where the script loads it."""
    step, counted = next(_counts), next((state["step"] for state in optimizer.state.values() if "step" in state), None)
    reported = step if counted is None else int(counted)
    rank = os.environ.get("RANK", "0")
    line = f"{time.time():.6f} rank {rank} pid {os.getpid()} step {reported} loss -\n"
    with open(os.environ["RECOVERY_STEPS"], "a") as lines:  # noqa: PTH123  # nothing is imported that need not be
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
