"""Positioned writes of staged bytes: never append, never truncate."""

from __future__ import annotations

import errno
import os
from collections.abc import Callable

from conduit_dagster.connectors.base import Delivery
from conduit_dagster.recovery.errors import FatalError
from conduit_dagster.state import storage

_PIECE = 1 << 20
_NO_KERNEL_COPY = {errno.EXDEV, errno.ENOSYS, errno.EINVAL, errno.EOPNOTSUPP, errno.EBADF}


def write_delivery(into: int, delivery: Delivery, midway: Callable[[], None]) -> None:
    """Writes the delivery at its base, from the front; ``midway`` is called once, when half of the bytes are there.

    Raises ``OSError``, and ``FatalError`` where a staged part is shorter than its ledger says.
    """
    base, half, done = delivery.target["base"], delivery.bytes // 2, 0
    if delivery.target["gap"]:
        os.pwrite(into, b"\n", base - 1)  # what was there before this pipeline did not end its last line
    for part in delivery.parts:
        has_half = done <= half < done + part.bytes
        cut = half - done if has_half else 0
        with storage.open_read(storage.join(delivery.staging, part.name)) as staged:
            _copy(staged.fileno(), 0, into, base + done, cut)
            if has_half:
                midway()
            _copy(staged.fileno(), cut, into, base + done + cut, part.bytes - cut)
        done += part.bytes


def _copy(source: int, start: int, into: int, at: int, length: int) -> None:
    """Copies ``length`` bytes from ``start`` of ``source`` to ``at``, inside the kernel where that works."""
    done = 0
    while done < length:
        try:
            copied = os.copy_file_range(source, into, length - done, start + done, at + done)
        except OSError as error:
            if error.errno not in _NO_KERNEL_COPY:
                raise
            copied = os.pwrite(into, os.pread(source, min(_PIECE, length - done), start + done), at + done)
        if copied == 0:
            raise FatalError(
                f"a staged part is {length - done} bytes shorter than its ledger says",
                code="delivery.staging_damaged",
                fix="look at the disk that holds the staging folder; run again to have the step staged anew",
            )
        done += copied
