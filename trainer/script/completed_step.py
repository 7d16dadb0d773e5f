"""The objects of a script as they were after its last completed step, so that a survivor can hand them over.

Parameters and optimizer states stay where they are: only an optimizer step may change them, and a hook notices when one
begins. Everything else is copied after each step, because nobody knows when a script changes it.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from copy import deepcopy
from typing import Any

from torch import Tensor, nn
from torch.distributed.fsdp import FullyShardedDataParallel
from torch.optim import Optimizer
from torch.optim.optimizer import register_optimizer_step_pre_hook

from trainer.script.fingerprint import fingerprint
from trainer.script.script_state import read_object
from trainer.worker.torch_compat import version_of

_WHOLE = (Tensor, nn.Parameter)  # a subclass, such as DTensor, may hold only a part


class CompletedStep:
    """`step` counts the completed steps of the state that can be handed over.

    `why_not` says why there is none, or is empty. `fingerprint` is that of the values that the ranks must agree on, 0
    if nothing is handed over.
    """

    def __init__(self, objects: Mapping[str, object], step: int, changing: threading.Lock | None = None) -> None:
        """No update begins while another thread holds `changing`."""
        self.step, self.fingerprint = step, 0
        self.is_at_rest: Callable[[], bool] = lambda: True  # asked before and after another thread reads the objects
        self._changing = threading.Lock() if changing is None else changing
        self.layout = fingerprint_layout(objects)
        self.why_not = find_obstacle(objects)
        self._objects = objects
        self._optimizers = [each for each in objects.values() if isinstance(each, Optimizer)]
        self._parameters = [
            parameter
            for subject in objects.values()
            if isinstance(subject, nn.Module)
            for parameter in subject.parameters()
        ]
        self._others: dict[str, Any] = {}
        self._options: list[list[dict[str, Any]]] = []
        self._versions: list[int] = []
        self._is_updated = False  # an optimizer step has begun since `step`
        self._is_compared = False  # a fingerprint has covered the values of all tensors
        self._layouts: list[str] = []  # of the optimizers' states
        self._agreed: list[str] | None = None  # those that all ranks had
        self._unsteady: set[str] = set()
        self._is_evaluating = False
        # Of all optimizers: one of the objects may wrap another one, and have no hooks of its own.
        self._handle = register_optimizer_step_pre_hook(self._note_update)
        self._take()

    def close(self) -> None:
        self._handle.remove()

    @contextmanager
    def evaluating(self) -> Iterator[None]:
        """The model may have other weights, such as averages, put there through `.data`. It has after a failure."""
        self._is_evaluating = True
        yield
        self._is_evaluating = False

    def note(self, done: int) -> None:
        """The script has completed `done` steps. Without an update since the last one, that one's state stays."""
        with self._changing:
            if self._is_updated:
                self.step = done
                self._take(with_values=not self._is_compared)
                self._is_compared = True

    def note_agreed(self) -> None:
        """All ranks have the same fingerprint."""
        self._agreed = self._layouts

    def refuse(self, reason: str) -> None:
        """Hand nothing over in this generation."""
        self.why_not, self.fingerprint = reason, 0

    @property
    def is_whole(self) -> bool:
        """Whether nothing has changed since `step`, and all ranks have agreed that each has the whole state.

        Changes through `.data` are not noticed.
        """
        is_changed = self._is_updated or self._is_evaluating or self._layouts != self._agreed
        return not is_changed and self._has_same_parameters() and self.is_at_rest()

    def _has_same_parameters(self) -> bool:
        return self._versions == [version_of(each) for each in self._parameters]

    def contents(self) -> dict[str, Any]:
        for optimizer, options in zip(self._optimizers, self._options, strict=True):
            for group, own in zip(optimizer.param_groups, options, strict=False):
                group.update(own)  # a script may set the next step's learning rate early
        found = {
            name: self._others[name] if name in self._others else read_object(subject, self._objects)
            for name, subject in self._objects.items()
        }
        optimizers = [name for name, subject in self._objects.items() if isinstance(subject, Optimizer)]
        for name, options in zip(optimizers, self._options, strict=True):
            del found[name]["param_groups"][len(options) :]  # groups that joined early have no state yet
        known = {each.data_ptr() for each in self._parameters}
        self._unsteady = {
            f"{name}.{key}"
            for name, subject in self._objects.items()
            if isinstance(subject, nn.Module)
            for key, value in found[name].items()
            if not isinstance(value, Tensor) or value.data_ptr() not in known
        }
        return found

    def is_steady(self, name: str) -> bool:
        return name not in self._unsteady

    def _note_update(self, *_: object) -> None:
        with self._changing:
            self._is_updated = True

    def _take(self, *, with_values: bool = False) -> None:
        """`with_values`: the fingerprint covers the values of all tensors. That takes too long for each step."""
        self._is_updated = False
        if self.why_not:
            return
        try:
            self._versions = [version_of(each) for each in self._parameters]
            self._options = [[_options_of(group) for group in each.param_groups] for each in self._optimizers]
            self._others = {
                name: deepcopy(read_object(subject, self._objects))
                for name, subject in self._objects.items()
                if not isinstance(subject, (nn.Module, Optimizer))
            }
            values = [*self._parameters, *map(_moments_of, self._optimizers)] if with_values else []
            self._layouts = list(map(_layout_of_state, self._optimizers))
            compared = [self.layout, self.step, self._options, self._others, self._layouts, values]
            self.fingerprint = fingerprint(compared)
        except Exception as error:  # noqa: BLE001  # the script itself needs none of this
            self.refuse(f"an object cannot be copied: {type(error).__name__}: {error}")


def find_obstacle(objects: Mapping[str, object]) -> str:
    """Why a rank cannot hand these objects over, or an empty text."""
    if not any(isinstance(each, Optimizer) for each in objects.values()):
        return "there is no torch optimizer among the objects, so the end of an update cannot be detected"
    for name, subject in objects.items():
        if isinstance(subject, nn.Module):
            if any(isinstance(each, FullyShardedDataParallel) for each in subject.modules()):
                return f"{name} is sharded"
            if any(type(each) not in _WHOLE for each in subject.parameters()):
                return f"{name} is sharded, or has parameters of a Tensor subclass"
            if len(subject.state_dict()) > len(list(subject.named_parameters(remove_duplicate=False))):
                return f"{name} saves buffers, which a forward pass may have changed"
    return ""


def fingerprint_layout(objects: Mapping[str, object]) -> int:
    """Equal for objects of equal names, types and parameters. It reads no state: that would initialize optimizers."""
    return fingerprint({name: _layout_of(subject) for name, subject in objects.items()})


def _layout_of(subject: object) -> list[object]:
    kind = f"{type(subject).__module__}.{type(subject).__qualname__}"
    if isinstance(subject, nn.Module):
        named = subject.named_parameters(remove_duplicate=False)
        return [kind, *([name, str(each.dtype), list(each.shape)] for name, each in named)]
    if isinstance(subject, Optimizer):
        return [kind, *(len(group["params"]) for group in subject.param_groups)]
    return [kind]


def _moments_of(optimizer: Optimizer) -> list[dict[str, object]]:
    """The states of the parameters, in the order of the groups."""
    return [optimizer.state.get(each, {}) for group in optimizer.param_groups for each in group["params"]]


def _layout_of_state(optimizer: Optimizer) -> str:
    """Which parameters have which state. A rank has the whole state only if this is equal on all ranks."""
    return "\n".join(" ".join(sorted(map(str, own))) for own in _moments_of(optimizer))


def _options_of(group: Mapping[str, Any]) -> dict[str, Any]:
    return {name: deepcopy(value) for name, value in group.items() if name != "params"}
