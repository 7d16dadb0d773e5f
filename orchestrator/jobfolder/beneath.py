"""openat2(2): open what lies several levels below a folder in one call, without following links."""

from __future__ import annotations

import ctypes
import errno
import os
import sys
from collections.abc import Sequence
from functools import lru_cache

_OPENAT2 = 437  # the number of the system call, on every architecture (include/uapi/asm-generic/unistd.h)
_RESOLVE_NO_SYMLINKS, _RESOLVE_BENEATH = 0x04, 0x08  # include/uapi/linux/openat2.h


class _OpenHow(ctypes.Structure):
    _fields_ = (("flags", ctypes.c_uint64), ("mode", ctypes.c_uint64), ("resolve", ctypes.c_uint64))


if sys.platform == "linux":
    _syscall = ctypes.CDLL(None, use_errno=True).syscall
    _syscall.argtypes = (ctypes.c_long, ctypes.c_int, ctypes.c_char_p, ctypes.c_void_p, ctypes.c_size_t)
    _syscall.restype = ctypes.c_long


def open_beneath(above: int, names: Sequence[str], flags: int) -> int:
    """Return a descriptor. `names` are the entries on the way, each without a slash or a NUL. `flags` as in open(2).

    Raises OSError. Its errno is ENOSYS or EPERM if Linux is older than 5.6 or a sandbox forbids the call.
    """
    if sys.platform != "linux":
        raise OSError(errno.ENOSYS, "openat2 is a system call of Linux")
    path = os.fsencode("/".join(names))
    how = _how(flags)
    descriptor = int(_syscall(_OPENAT2, above, path, ctypes.addressof(how), ctypes.sizeof(how)))
    if descriptor < 0:
        raise OSError(ctypes.get_errno(), os.strerror(ctypes.get_errno()), path)
    return descriptor


@lru_cache
def _how(flags: int) -> _OpenHow:
    return _OpenHow(flags, 0, _RESOLVE_NO_SYMLINKS | _RESOLVE_BENEATH)
