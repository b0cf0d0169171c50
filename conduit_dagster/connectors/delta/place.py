"""Putting staged parts where a table's log may name them."""

from __future__ import annotations

import hashlib
import os
import secrets
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import fsspec

from conduit_dagster.connectors.linking import link
from conduit_dagster.recovery.errors import FatalError
from conduit_dagster.sdk import Delivery, Part
from conduit_dagster.state import storage


def names(delivery: Delivery, app: str) -> list[str]:
    """The delivery's files, by step and part: a repeat puts the same bytes under the same names, and nobody else any.

    ``app`` is the application transaction's name: copies of a project have the same delivery hashes.
    """
    own = hashlib.sha256(f"{app} {delivery.hash}".encode()).hexdigest()[:16]
    return [f"part-{delivery.step:012d}-{i:05d}-{own}.zstd.parquet" for i in range(len(delivery.parts))]


def place(delivery: Delivery, files: Sequence[str], root: str) -> None:
    """Puts the parts that the ledger names into the table's folder, durably. No reader sees them before the commit.

    May be repeated, also by two at once. Raises ``FatalError`` where a staged part is not what the ledger says.
    """
    for part, name in zip(delivery.parts, files, strict=True):
        staged, final = storage.join(delivery.staging, part.name), storage.join(root, name)
        if storage.size(final) == part.bytes and storage.digest(final) == (part.bytes, part.sha256):
            continue
        _require_whole(staged, part)
        local, into = storage.local_path(staged), storage.local_path(final)
        if local is not None and into is not None:
            _replace(local, into)
        else:
            _copy(staged, final)
    storage.sync(root)


def _require_whole(staged: str, part: Part) -> None:
    found = storage.size(staged)
    if found is not None and found != part.bytes:
        raise FatalError(
            f"the staged part {part.name} is {found} bytes long, its ledger says {part.bytes}",
            code="delivery.staging_damaged",
            place=staged,
            fix="look at the disk that holds the table; remove that file and run again to have the step staged anew",
        )


def _replace(staged: Path, final: Path) -> None:
    """A second name for the file, put into its place at once."""
    # no hidden name: what a crash leaves here is vacuum's to remove
    ready = final.with_name(f"{final.name}.{secrets.token_hex(4)}")
    link(staged, ready)
    # vacuum goes by age: a step that waited for days must not be taken for an old orphan before its commit
    os.utime(ready)
    ready.replace(final)
    ready.unlink(missing_ok=True)  # renaming one name of a file onto another of the same file leaves both


def _copy(staged: str, final: str) -> None:
    fs: Any
    fs, source = fsspec.core.url_to_fs(staged)
    fs.cp_file(source, fsspec.core.url_to_fs(final)[1])
