"""Exactly-once commits of deliveries to a Delta table, the data files they add, and the durability of the log."""

from __future__ import annotations

import hashlib
import json
import os
import random
import secrets
import time
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any, Final

import pyarrow as pa
import pyarrow.parquet as pq
from deltalake import CommitProperties, DeltaTable, Transaction
from deltalake.exceptions import CommitFailedError
from deltalake.transaction import AddAction, RemoveAction

from conduit_dagster import storage
from conduit_dagster.connectors.columnar.columns import Schema
from conduit_dagster.connectors.delta.table import DeltaTableLog
from conduit_dagster.recovery.errors import FatalError, TransientError
from conduit_dagster.recovery.kill_points import reached
from conduit_dagster.sdk import Delivery, Part

_types: Any = pa.types


class LogSync:
    """Sync of log entries, once each, including those of other writers: our entry is useless after a lost one."""

    def __init__(self, root: Path | None) -> None:
        self._log = None if root is None else root / "_delta_log"
        self._upto = -1

    def sync(self, version: int) -> None:
        """Sync the entries up to ``version`` and the checkpoint that a reader would start from. Local tables only."""
        if self._log is None:
            return
        checkpoint = self._checkpoint(self._log)
        known = self._upto if self._upto <= version else -1  # a recreated table counts from 0
        for at in range(max(checkpoint, known + 1), version + 1):
            self._one(self._log / f"{at:020d}.json")
        self._one(self._log / f"{checkpoint:020d}.checkpoint.parquet")
        self._one(self._log / "_last_checkpoint")
        storage.sync(str(self._log))
        storage.sync(str(self._log.parent))
        self._upto = version

    def _one(self, path: Path) -> None:
        if path.exists():
            storage.sync(str(path))

    def _checkpoint(self, log: Path) -> int:
        try:
            return int(json.loads((log / "_last_checkpoint").read_bytes())["version"])
        except (FileNotFoundError, KeyError, ValueError):
            return 0


def names(delivery: Delivery, app: str) -> list[str]:
    """Return the delivery's file names, by step and part: only this delivery uses them, always with the same bytes.

    ``app`` is the application transaction's name: copies of a project have the same delivery hashes.
    """
    own = hashlib.sha256(f"{app} {delivery.hash}".encode()).hexdigest()[:16]
    return [f"part-{delivery.step:012d}-{i:05d}-{own}.zstd.parquet" for i in range(len(delivery.parts))]


def place(delivery: Delivery, files: Sequence[str], root: str) -> None:
    """Put the parts named by the ledger into the table's folder, durably. Readers don't see them before the commit.

    May be repeated, also concurrently. Raises ``FatalError`` if a staged part does not match the ledger.
    """
    for part, name in zip(delivery.parts, files, strict=True):
        staged, final = storage.join(delivery.staging, part.name), storage.join(root, name)
        local, into = storage.local_path(staged), storage.local_path(final)
        if storage.size(final) == part.bytes and storage.digest(final) == (part.bytes, part.sha256):
            if into is not None:
                _renew(into)
            elif storage.size(staged) == part.bytes:
                storage.copy(staged, final)  # as _renew: a store dates a file by its last copy
            continue
        _require_whole(staged, part)
        if local is not None and into is not None:
            _replace(local, into)
        else:
            storage.copy(staged, final)
    storage.sync(root)


def _require_whole(staged: str, part: Part) -> None:
    found = storage.size(staged)
    if found is not None and found != part.bytes:
        raise FatalError(
            f"the staged part {part.name} is {found} bytes long, its ledger says {part.bytes}",
            code="delivery.staging_damaged",
            place=staged,
            fix="check the disk that holds the table; remove that file and run again to have the step staged anew",
        )


def _replace(staged: Path, final: Path) -> None:
    """Hard-link the staged file and move the link to its final name atomically."""
    # not a hidden name: vacuum then removes what a crash leaves here
    ready = final.with_name(f"{final.name}.{secrets.token_hex(4)}")
    storage.link(staged, ready)
    _renew(ready)
    ready.replace(final)
    ready.unlink(missing_ok=True)  # renaming a hard link onto another link to the same file leaves both


def _renew(file: Path) -> None:
    """Set a file's time to now: vacuum goes by age, and must not take what waited for days for its commit."""
    os.utime(file)


ATTEMPTS: Final = 30
"""Maximum number of commit attempts while other writers commit in between."""

_HASH_BITS: Final = 31


class Commits:
    """Deliveries as commits, each under an application transaction of the table.

    The transaction's version is the step in the high bits and 31 bits of the delivery hash in the low ones. So the
    snapshot alone shows whether a delivery is committed, and whether it is this one, even after its log entry was
    cleaned up.
    """

    def __init__(self, table: DeltaTableLog, pipeline: str, app_id: str, once: bool) -> None:
        """``once``: a delivery must never be committed twice, however late it is repeated."""
        self._table, self._once = table, once
        self._pipeline = pipeline
        self._app_id = app_id
        self._log = LogSync(table.local)

    def holds(self, delivery: Delivery) -> bool:
        """Return whether the delivery is committed, even if its rows were compacted, deleted or vacuumed since."""
        table = self._table.open()
        return table is not None and self._is_in(table, delivery)

    def refuses(self, delivery: Delivery) -> bool:
        """Return whether the table has another delivery of this step, or a later step, under the application id."""
        table = self._table.open()
        found = None if table is None else table.transaction_version(self._app(delivery))
        return found is not None and found >> _HASH_BITS >= delivery.step and found != _version(delivery)

    def settle(self) -> None:
        """Make the committed entries durable: the process that committed them may have crashed before its sync."""
        table = self._table.open()
        if table is not None:
            self._log.sync(table.version())

    def publish(self, delivery: Delivery) -> None:
        """Commit the delivery, once. Retries after other writers' commits, up to ``ATTEMPTS`` times."""
        table = self._open()
        version = table.version()
        if not self._is_in(table, delivery):
            place(delivery, self._files(delivery), self._table.uri)
            reached("mid-publish", self._pipeline)
            version = self._commit(table, delivery)
        self._log.sync(version)

    def _commit(self, table: DeltaTable, delivery: Delivery) -> int:
        """Commit the delivery and return a version of the table that contains it.

        Two committers of one delivery can't both succeed: each creates the log entry right after the version in which
        it found the delivery missing, with put-if-absent and without the library's own retries. The second one finds
        that entry, checks again, and finds the delivery. The same holds for a frozen owner's attempt.
        """
        staged = self._staged_schemas(delivery)
        for attempt in range(ATTEMPTS):
            self._require_fit(table, staged)
            try:
                self._append(table, delivery)
                return table.version() + 1
            except CommitFailedError:
                time.sleep(random.uniform(0, 0.01 * attempt))
                seen, table = table.version(), self._open()
                if table.version() == seen:
                    raise  # no other writer committed in between: the commit itself is refused
            if self._is_in(table, delivery):
                return table.version()
        raise TransientError(
            f"{ATTEMPTS} times another writer committed to {self._table.address} first",
            code="delta.contended",
            place=self._table.address,
            fix="run again; let fewer pipelines write to this table, or less often",
        )

    def _append(self, table: DeltaTable, delivery: Delivery) -> None:
        transaction = Transaction(self._app(delivery), _version(delivery))
        properties = CommitProperties(
            custom_metadata={"conduit.delivery": delivery.hash, "conduit.step": str(delivery.step)},
            max_commit_retries=0,
            app_transactions=[transaction],
        )
        now = int(time.time() * 1000)
        files: list[AddAction | RemoveAction] = [
            AddAction(name, part.bytes, {}, now, True, json.dumps({"numRecords": part.records}))
            for name, part in zip(self._files(delivery), delivery.parts, strict=True)
        ]
        table.create_write_transaction(files, "append", table.schema(), commit_properties=properties)

    def _app(self, delivery: Delivery) -> str:
        """Return the application id: one per consumer, whose steps only grow; one per late dead letter of a step."""
        names = map(storage.safe_name, (self._pipeline, delivery.consumer))
        app_id = self._app_id or ":".join(["conduit", *names])
        return f"{app_id}:{delivery.hash}" if delivery.skip else app_id

    def _files(self, delivery: Delivery) -> list[str]:
        return names(delivery, self._app(delivery))

    def _is_in(self, table: DeltaTable, delivery: Delivery) -> bool:
        found, ours = table.transaction_version(self._app(delivery)), _version(delivery)
        if found is None or found >> _HASH_BITS < delivery.step:
            return False
        if found == ours:
            return True
        # a later step does not prove that this one was committed: after a lost state store that would drop every record
        there = f"{self._table.address} has step {found >> _HASH_BITS} of {self._app(delivery)} already"
        raise FatalError(
            f"{there}, and not this delivery of step {delivery.step}: another project writes under that name, or this "
            "pipeline's state was lost",
            code="delta.transaction_taken",
            place=self._table.address,
            fix="look which records the table has, then give the destination an app-id of its own: the step is added",
        )

    def _open(self) -> DeltaTable:
        """Open the table's newest snapshot, for a commit that relies on its transactions."""
        table = self._table.open()
        if table is None:
            raise FatalError(
                f"the Delta table {self._table.address} is gone, and a prepared step is to be appended to it",
                code="delta.table_gone",
                place=self._table.address,
                fix="restore it; to start a new one, remove its whole folder, staging included, and run again",
            )
        if self._once:
            # checked for every snapshot without the delivery: it may be committed, with its transaction dropped
            self._table.require_lasting(table)
        return table

    def _staged_schemas(self, delivery: Delivery) -> list[Schema]:
        found: list[Schema] = []
        for name in self._files(delivery):
            with storage.open_read(storage.join(self._table.uri, name)) as file:
                found.append(pq.read_schema(file))
        return found

    def _require_fit(self, table: DeltaTable, schemas: Sequence[Schema]) -> None:
        """Raise ``FatalError`` if the table was altered so that the staged parts no longer fit."""
        columns = self._table.writable(table)
        for staged in schemas:
            if wrong := _misfits(columns, staged):
                raise self._altered(wrong)

    def _altered(self, fields: list[str]) -> FatalError:
        return FatalError(
            f"the columns {', '.join(fields)} of {self._table.address} were altered after a step was prepared for them",
            code="delta.altered",
            place=self._table.address,
            fix="put the columns back as they were, let the pipeline finish the step, then alter them",
        )


def _misfits(columns: Iterable[Any], staged: Iterable[Any]) -> list[str]:
    """Return the fields that keep staged rows out of these columns: those that they do not take, or that are lacking.

    A field that was added since is null in them, in an object too, as in all files that are older than it.
    """
    there, given = {field.name: field for field in columns}, {field.name: field for field in staged}
    wrong = [name for name, field in given.items() if name not in there or not _takes(there[name], field)]
    return wrong + [name for name, field in there.items() if not field.nullable and name not in given]


def _takes(column: Any, field: Any) -> bool:
    """Return whether a column takes a staged field: it has the type, and nulls if there may be some."""
    if field.nullable and not column.nullable:
        return False
    if _types.is_struct(column.type) and _types.is_struct(field.type):
        return not _misfits(column.type, field.type)
    if _types.is_list(column.type) and _types.is_list(field.type):
        return _takes(column.type.value_field, field.type.value_field)
    return column.type == field.type


def _version(delivery: Delivery) -> int:
    return delivery.step << _HASH_BITS | int(delivery.hash[:16], 16) >> 64 - _HASH_BITS
