"""The private names of torch that this project uses, and those that some supported release lacks.

Each function says which name it needs, and what it does in a torch that lacks it. Every forked worker imports this
module before its program, so it imports only what `import torch` has loaded.
"""

from __future__ import annotations

import sys
import threading
import weakref
from functools import wraps
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor

from trainer.worker.connections import Connection, break_connections, find_connections, limit_backoff

_meshes: list[weakref.ref[dist.DeviceMesh]] = []


def keep_process_groups() -> None:
    """Keep a reference to every process group that this process makes, so that finished training also ends.

    The thread that drops the last reference to a gloo group destroys it. Often that is DDP's reducer, when a script's
    main function returns after `destroy_process_group`. It joins the group's threads with the interpreter lock held,
    while one of them may wait for that lock to drop the context of the last backward pass: the worker hangs forever.
    Seen in torch 2.13 (ProcessGroupGloo's destructor in `std::thread::join`, `runLoop` in `~ThreadLocalState`), in one
    of ten short runs of a plain DDP script on a busy machine.

    It also sets the options of each new group's connections (`connections`).

    This replaces `_new_process_group_helper`, which all public functions call (2.6 to 2.15). Without that name it does
    nothing.
    """
    c10d = sys.modules.get("torch.distributed.distributed_c10d")
    make = getattr(c10d, "_new_process_group_helper", None)
    if c10d is None or make is None or hasattr(make, "kept"):
        return

    @wraps(make)
    def make_and_keep(*arguments: Any, **options: Any) -> Any:
        before = find_connections()
        made = make(*arguments, **options)
        kept.append(made)
        now = find_connections()  # gloo has connected all ranks
        limit_backoff(now)  # the connection to the store too
        connections.update(now - before)
        return made

    kept: list[Any] = []
    connections: set[Connection] = set()
    make_and_keep.kept, make_and_keep.connections = kept, connections  # type: ignore[attr-defined]
    c10d._new_process_group_helper = make_and_keep  # type: ignore[attr-defined]


def note_mesh(mesh: dist.DeviceMesh) -> dist.DeviceMesh:
    """`release_process_groups` drops the references of this mesh, too.

    DTensor's caches keep a DeviceMesh for ever, and its `_pg_registry` keeps its groups (2.13 to 2.15), for use while
    code is compiled. A torch without that name finds groups only by their names.
    """
    _meshes.append(weakref.ref(mesh))
    return mesh


def break_process_groups() -> None:
    """Make the collectives of all kept process groups fail, here and on the other ranks. Thread-safe."""
    make = getattr(dist.distributed_c10d, "_new_process_group_helper", None)
    break_connections(list(getattr(make, "connections", ())))


def release_process_groups() -> threading.Thread:
    """Drop the references of `keep_process_groups`, so that the groups end. After `destroy_process_group`.

    Returns the thread that does it.

    They are found at torch's function: a worker may import another copy of this module than the fork server did.

    Destroying a gloo group joins its threads, so a thread of its own does it. The group's threads check every 10 ms
    whether they must end. One may also wait in a collective until the group's timeout: gloo forgets a message if the
    write fails before another thread has seen the end of the connection (torch 2.13, `UnboundBuffer::waitSend`).
    """
    while _meshes:
        getattr(_meshes.pop()(), "_pg_registry", {}).clear()
    make = getattr(dist.distributed_c10d, "_new_process_group_helper", None)
    kept: list[Any] = getattr(make, "kept", [])
    groups = kept.copy()
    kept.clear()
    getattr(make, "connections", set()).clear()
    thread = threading.Thread(target=groups.clear, name="leaving", daemon=True)
    thread.start()
    return thread


def store_of_the_group() -> dist.Store:
    """The store of the default group: `ProcessGroup.get_group_store` (public).

    torch 2.8 lacks it. There it is `_get_default_store` (2.8 to 2.15), which finds the same store.
    """
    group = dist.group.WORLD
    assert group is not None
    if hasattr(group, "get_group_store"):
        return group.get_group_store()
    found: dist.Store = dist.distributed_c10d._get_default_store()
    return found


def version_of(tensor: Tensor) -> int:
    """How often a tensor was changed in place: `Tensor._version` (2.6 to 2.15; autograd's documentation names it).

    Fused optimizers, and changes through `.data`, are not counted.
    """
    return tensor._version


def multiply_each(tensors: list[Tensor], factor: Tensor) -> None:
    """Multiply in place, in one kernel: `torch._foreach_mul_` (2.6 to 2.15; documented). It has no equivalent."""
    torch._foreach_mul_(tensors, factor)


def norm_of_each(tensors: list[Tensor], dtype: torch.dtype) -> tuple[Tensor, ...]:
    """The 2-norms, each a scalar of `dtype`, in one kernel: `torch._foreach_norm` (2.6 to 2.15; documented)."""
    return tuple(torch._foreach_norm(tensors, 2, dtype))


def copy_each(targets: list[Tensor], sources: list[Tensor]) -> None:
    """`target.copy_(source, non_blocking=True)` for each, in one call: `torch._foreach_copy_` (2.6 to 2.15)."""
    torch._foreach_copy_(targets, sources, non_blocking=True)


def pin(batch: object) -> object:
    """Copy a batch, with its containers, to page-locked memory: the DataLoader's `pin_memory` (2.6 to 2.15)."""
    from torch.utils.data._utils.pin_memory import pin_memory  # noqa: PLC0415  # only for a GPU

    return pin_memory(batch)  # type: ignore[no-untyped-call]
