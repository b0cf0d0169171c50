"""A file that an export writes: complete, or not at all."""

from __future__ import annotations

import errno
import os
import secrets
from collections.abc import Generator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import BinaryIO

from conduit_dagster.engine.operate.operator_errors import refused
from conduit_dagster.recovery.errors import from_os_error


@contextmanager
def exported(file: Path, force: bool, doing: str) -> Generator[BinaryIO]:
    """Yield a new file, which takes the place of ``file`` once all is written; a failure leaves ``file`` as it was.

    Raises ``FatalError`` (``usage.file_exists``, ``usage.not_a_file`` for a device or pipe), ``TransientError``
    (``file.*``); ``doing`` names the action in its message.
    """
    _require_replaceable(file, force, doing)
    draft = file.with_name(f".{secrets.token_hex(8)}")  # no longer than the name that it gets
    try:
        with draft.open("xb") as out:
            yield out
            out.flush()
            os.fsync(out.fileno())
        draft.replace(file)
    except OSError as error:
        failed = from_os_error(error, doing)
        failed.place = str(file)  # not the name of the draft
        raise failed from error
    finally:
        with suppress(OSError):  # where no draft could be made either
            draft.unlink()


def _require_replaceable(file: Path, force: bool, doing: str) -> None:
    if file.is_dir():
        folder = from_os_error(IsADirectoryError(errno.EISDIR, "", str(file)), doing)
        folder.fix = "name a file in it"
        raise folder
    if not file.exists():
        return
    if not file.is_file():
        raise refused("usage.not_a_file", f"{file} is a device or pipe, and an export replaces it", "name a file")
    if not force:
        raise refused("usage.file_exists", f"{file} already exists", "name another file, or repeat it with --force")
