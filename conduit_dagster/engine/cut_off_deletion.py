"""The end of a deletion whose command was killed, before anything is kept under the pipeline's id again."""

from __future__ import annotations

from functools import partial

import structlog

from conduit_dagster import storage
from conduit_dagster.engine.folder_claims import claim_folders
from conduit_dagster.engine.operate.folder_listing import FolderListing
from conduit_dagster.engine.run_options import RunOptions
from conduit_dagster.state.deletion import cut_off, delete_letters, record_deletion
from conduit_dagster.state.store import PipelineStore

log = structlog.get_logger("conduit.engine")


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
