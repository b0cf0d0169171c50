"""Removal of folders that are no longer needed: one that stays is told, and is no error."""

from __future__ import annotations

import structlog

from conduit_dagster import storage

_log = structlog.get_logger("conduit.storage")
_OWNER = (
    "let the user of the driver delete what the workers write, or the disk fills up; what is left of staging goes when"
    " the pipeline starts again"
)
_told: set[str] = set()


def discard_folder(url: str) -> None:
    """Remove a folder that is no longer needed. One that stays is no error: a process warns once per parent folder."""
    try:
        storage.remove_folder(url)
    except OSError as error:
        parent = url.rpartition("/")[0]
        if parent not in _told:
            _told.add(parent)
            _log.warning("a folder that is no longer needed can't be removed", folder=url, cause=str(error), fix=_OWNER)
