"""``log export``: the log in the binary layout of reference 4."""

from __future__ import annotations

import os
import secrets
from pathlib import Path
from typing import Any

import sqlalchemy as sa

from conduit_dagster.commit_log.binary import export_entries
from conduit_dagster.engine.operate.logs import beyond, log_of
from conduit_dagster.engine.operate.operator_errors import refused
from conduit_dagster.recovery.errors import from_os_error


def export_log(
    database: sa.Engine,
    pipeline: str,
    base: str,
    file: Path,
    source: str | None,
    first: int | None,
    last: int | None,
    force: bool = False,
) -> dict[str, Any]:
    """Write the entries ``first`` to ``last``, both included, to a new file, whole or not at all.

    Positions and times of the source are not in the layout: positions become text, times whole seconds. Raises
    ``FatalError`` (``log.*``, ``usage.*``), ``TransientError`` (``file.*``).
    """
    view = log_of(database, pipeline, base, source)
    if first is not None and first >= view.state().next_offset:
        raise beyond(view, first)
    if file.exists() and not force:
        raise refused("usage.file_exists", f"{file} is there already", "name another file, or repeat it with --force")
    draft = file.with_name(f".{file.name}.{secrets.token_hex(4)}")
    blocks = view.blocks(first or 0, None if last is None else last + 1)
    try:
        with draft.open("xb") as out:
            count = export_entries(blocks, out)
            out.flush()
            os.fsync(out.fileno())
        size = draft.stat().st_size
        draft.replace(file)
    except OSError as error:
        raise from_os_error(error, "exporting the log") from error
    finally:
        draft.unlink(missing_ok=True)
    position = view.state().position
    return {"source": view.source, "file": str(file), "entries": count, "bytes": size, "source_position": position}
