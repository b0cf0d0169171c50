"""The folders of a pipeline, with its log, dead letters and staged records: claimed by its project, and removed.

A run removes files there that the state store does not name. Of two projects that share ``state.staging`` or
``state.log`` and have a pipeline of one id, each would take the other's log, dead letters and staged records for
remains of its own.
"""

from __future__ import annotations

import errno
import os
from collections.abc import Callable
from functools import partial
from pathlib import Path

import sqlalchemy as sa
import structlog

from conduit_dagster import storage
from conduit_dagster.engine.run_options import RunOptions
from conduit_dagster.recovery.errors import FatalError, from_os_error
from conduit_dagster.state.claim import claim_of
from conduit_dagster.state.database import place_of
from conduit_dagster.state.deletion import cut_off, delete_letters, record_deletion
from conduit_dagster.state.store import PipelineStore

log = structlog.get_logger("conduit.engine")
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


class FolderListing:
    """The files and folders below ``url``, listed now.

    No name is ever used again, so they may be removed after a lease is lost. A folder of a store is removed as it is
    then: the caller checks its lease right before.
    """

    def __init__(self, url: str) -> None:
        self._url = url
        self._files, self._folders, self._failed = list[Path](), list[Path](), list[OSError]()
        path = storage.local_path(url)
        self._is_listed = path is not None and not path.is_symlink()
        if path is None or not self._is_listed or not path.is_dir():
            return
        # from below; a link to a folder is not followed, and removed like a file
        for folder, inner, files in os.walk(path, topdown=False, onerror=self._failed.append):
            here = Path(folder)
            self._files += [here / name for name in files]
            self._files += [here / name for name in inner if (here / name).is_symlink()]
            self._folders.append(here)

    def remove(self) -> None:
        """Remove them; no effect on what is gone. Raises ``OSError`` for the first one that stays."""
        if not self._is_listed:
            storage.remove_folder(self._url)
            return
        ended = [_ended(file.unlink) for file in self._files] + [_ended(folder.rmdir) for folder in self._folders]
        if failed := [*self._failed, *(error for error in ended if error is not None)]:
            raise failed[0]


def _ended(remove: Callable[[], None]) -> OSError | None:
    try:
        remove()
    except OSError as error:
        # what is new in a folder stays
        return None if error.errno in (errno.ENOENT, errno.ENOTEMPTY, errno.EEXIST) else error
    return None


def kept_folders(pipeline: str, options: RunOptions) -> list[str]:
    """Return the folders of a pipeline's log with its archive of dead letters, and of what is staged."""
    return [storage.join(base, storage.safe_name(pipeline)) for base in (options.log_url, options.staging)]


def end_deletion(store: PipelineStore, options: RunOptions) -> None:
    """End a deletion that was cut off, if there is one: its state is gone, and letters and files may be left.

    A replay would send these letters beside those of the records that are read again, and no other command would remove
    the files. Call it as the owner, before anything is registered. Raises as :func:`claim_folders` does.
    """
    detail = store.transactions.read(partial(cut_off, pipeline=store.pipeline))
    if detail is None:
        return
    claim_folders(store.engine, store.pipeline, options)
    # before the transaction that checks the lease: a later owner makes files of its own
    listed = {folder: FolderListing(folder) for folder in kept_folders(store.pipeline, options)}
    delete_letters(store.transactions, store.pipeline)
    for folder, files in listed.items():
        try:
            files.remove()
        except OSError as error:
            log.warning("files of a deleted pipeline stay", folder=folder, error=str(error))
    store.transactions.run(partial(record_deletion, pipeline=store.pipeline, **detail))
