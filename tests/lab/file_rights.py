"""File permissions that hold for root as well."""

from __future__ import annotations

import ctypes
import os
from collections.abc import Iterator
from contextlib import contextmanager

_VERSION_3 = 0x20080522
_CAPGET, _CAPSET = {"x86_64": (125, 126), "aarch64": (90, 91)}.get(os.uname().machine, (0, 0))
_OVERRIDES = 1 << 1 | 1 << 2
"""``CAP_DAC_OVERRIDE`` and ``CAP_DAC_READ_SEARCH``."""


@contextmanager
def obeyed() -> Iterator[None]:
    """Let this thread obey file permissions, although it may be root's: those of the owner are its own."""
    header = (ctypes.c_uint32 * 2)(_VERSION_3, 0)
    sets = (ctypes.c_uint32 * 6)()
    libc = ctypes.CDLL(None, use_errno=True)

    def call(number: int) -> None:
        if libc.syscall(number, header, sets):
            raise OSError(ctypes.get_errno(), "the thread's capabilities can't be changed")

    call(_CAPGET)
    before = sets[0]
    sets[0] = before & ~_OVERRIDES
    call(_CAPSET)
    try:
        yield
    finally:
        sets[0] = before
        call(_CAPSET)
