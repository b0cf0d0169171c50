"""Claims of a pipeline's folders by its project.

A run removes files there that the state store does not name. Of two projects that share ``state.staging`` or
``state.log`` and have a pipeline of one id, each would take the other's log, dead letters and staged records for
remains of its own.
"""

from __future__ import annotations

import sqlalchemy as sa

from conduit_dagster import storage
from conduit_dagster.engine.run_options import RunOptions
from conduit_dagster.recovery.errors import FatalError, from_os_error
from conduit_dagster.state.claim import claim_of
from conduit_dagster.state.database import place_of

_MARK = "~project"
"""The file that names the owner. No connector's id has a tilde, so that none of their folders has this name."""


def claim_folders(database: sa.Engine, pipeline: str, options: RunOptions) -> None:
    """Claim the pipeline's folders for the project of the state store. Those in the project's home need no claim.

    Raises ``FatalError`` (``state.foreign_folder``) for one of another project, and ``TransientError`` if it can't be
    read or written. A folder without a claim, such as that of an earlier version, is taken.
    """
    claim = claim_of(database)
    if claim is None:
        return
    for base in dict.fromkeys((options.staging, options.log_url)):
        if not claim.has_at_home(base):
            folder = storage.join(base, storage.safe_name(pipeline))
            try:
                owner = _claimed(folder, f"{claim.project} {place_of(database)}\n")
            except OSError as error:
                raise from_os_error(error, f"{folder} can't be used") from error
            if owner.split()[0] != claim.project:
                raise _foreign(folder, owner)


def _claimed(folder: str, mine: str) -> str:
    """Return the owner of a folder, which is ``mine`` if it had none: a project's id, and where its store is."""
    mark = storage.join(folder, _MARK)
    owner = _owner(mark)
    if not owner:
        storage.make_folder(folder)
        storage.put_new(mark, mine.encode())
        owner = _owner(mark) or mine
    return owner


def _owner(mark: str) -> str:
    try:
        text = b"".join(storage.chunks(mark)).decode(errors="replace")
    except FileNotFoundError:
        return ""
    if not text.endswith("\n"):  # a crash on a file system without hard links
        storage.remove(mark)
        return ""
    return text.strip()


def _foreign(folder: str, owner: str) -> FatalError:
    project, _, store = owner.partition(" ")
    return FatalError(
        f"{folder} belongs to project {project}, whose state store is {store}: each would remove the other's files",
        code="state.foreign_folder",
        place=storage.join(folder, _MARK),
        fix="set state.staging and state.log to places of this project's own, or give the pipeline another id; if that "
        "project is gone for good, remove this file",
    )
