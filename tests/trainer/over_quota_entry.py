"""The trainer in a process whose large writes fail with EDQUOT, a full quota, by seccomp(2).

Journals and logs are written in small pieces and do not fail. The tensors of a snapshot do.
"""

import ctypes
import errno
import platform
import struct
import sys

from trainer import __main__

_WRITE = {"x86_64": 1, "aarch64": 64}[platform.machine()]
_LARGE_BYTES = 65536
# linux/bpf_common.h, and linux/seccomp.h: the filter loads fields of struct seccomp_data
_LOAD, _EQUAL, _AT_LEAST, _RETURN = 0x20, 0x15, 0x35, 0x06
_NUMBER, _THIRD_ARGUMENT = 0, 32
_ERRNO, _ALLOW = 0x00050000, 0x7FFF0000
_FILTER = [
    (_LOAD, 0, 0, _NUMBER),
    (_EQUAL, 0, 3, _WRITE),
    (_LOAD, 0, 0, _THIRD_ARGUMENT),
    (_AT_LEAST, 0, 1, _LARGE_BYTES),
    (_RETURN, 0, 0, _ERRNO | errno.EDQUOT),
    (_RETURN, 0, 0, _ALLOW),
]


def fill_quota() -> None:
    libc = ctypes.CDLL(None, use_errno=True)
    code = ctypes.create_string_buffer(b"".join(struct.pack("HBBI", *line) for line in _FILTER))
    program = struct.pack("HxxxxxxP", len(_FILTER), ctypes.addressof(code))
    no_new_privileges, set_seccomp, mode_filter = 38, 22, 2  # linux/prctl.h
    for arguments in ((no_new_privileges, 1, 0, 0, 0), (set_seccomp, mode_filter, program, 0, 0)):
        if libc.prctl(*arguments) != 0:
            raise OSError(ctypes.get_errno(), "prctl")


if __name__ == "__main__":
    fill_quota()
    sys.exit(__main__.main())
