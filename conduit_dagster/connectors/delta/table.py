"""Delta tables: opening, creation, columns, and translation of the library's errors."""

from __future__ import annotations

import errno
import json
import re
from collections.abc import Generator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Final
from urllib.parse import urlsplit, urlunsplit

import pyarrow as pa
from deltalake import CommitProperties, DeltaTable, QueryBuilder
from deltalake import Schema as DeltaSchema
from deltalake.exceptions import DeltaError, DeltaProtocolError, TableNotFoundError

from conduit_dagster import storage
from conduit_dagster.connectors.columnar.columns import DataType, Schema, primitive
from conduit_dagster.connectors.file.listing import HIDDEN
from conduit_dagster.recovery.errors import ConduitError, FatalError, TransientError, from_os_error
from conduit_dagster.storage import sync_entry
from conduit_dagster.store_files import StoreError

SUPPORTED: Final = frozenset(
    {"appendOnly", "changeDataFeed", "checkConstraints", "deletionVectors", "generatedColumns", "invariants"}
    | {"columnMapping", "timestampNtz", "v2Checkpoint", "variantType", "variantType-preview"}
)
"""Table features that ``deltalake`` can commit to. Those that affect how rows are written are checked one by one."""

EXPIRY: Final = "delta.setTransactionRetentionDuration"
"""Table property that allows application transactions to be dropped."""

_DEEPEST: Final = 2
"""Levels of folders, such as those of a partitioned dataset, in which Parquet files are looked for."""
_OS_ERROR = re.compile(r"\(os error (\d+)\)|Os \{ code: (\d+)")
_REQUEST: Final = "Error performing "
_REFUSED: Final = ("privileges", "403 Forbidden", "Unauthenticated", "<Code>ExpiredToken", "<Code>InvalidToken")
_MESSAGE = re.compile(r"<Message>(.*?)</Message>", re.DOTALL)
_MARKS = re.compile(r"\x1b\[[0-9;]*m|\u21b3")
"""Colours and arrows of the library's messages."""
_NOT_ALLOWED: Final = "URL scheme is not allowed"
_HTTP: Final = "an endpoint without TLS needs AWS_ALLOW_HTTP=true in the environment"


class DeltaTableLog:
    """A table by its address. Every access reads it anew: nothing is cached between steps."""

    def __init__(self, uri: str) -> None:
        local = storage.local_path(uri)
        self.uri = uri if local is None else str(local)
        self.local: Path | None = local
        self.address = self.uri if local is not None else _without_secrets(self.uri)
        """Path, or URL without user, password and query."""
        if wrong := _misread(uri, local):
            raise FatalError(
                f"the path {self.address} holds {wrong}, by which deltalake finds another folder than the one named",
                code="delta.path",
                place=self.address,
                fix="name a folder without it",
            )

    def open(self) -> DeltaTable | None:
        """Return the table at its latest version, or None if it does not exist."""
        with self.mapped("can't open the table"):
            try:
                return DeltaTable(self.uri)
            except TableNotFoundError:
                return None

    def create(self, schema: Schema) -> DeltaTable:
        """Create an empty table, or open the one that another task, pipeline or program created first."""
        self.require_free()
        with self.mapped("can't create the table"):
            if self.local is not None:
                self.local.mkdir(parents=True, exist_ok=True)
            try:
                # without retries the commit is version 0 or fails; with them the second creator's schema would replace
                # the first one's in version 1
                once = CommitProperties(max_commit_retries=0)
                DeltaTable.create(self.uri, DeltaSchema.from_arrow(schema), commit_properties=once)
            except DeltaError:
                if not DeltaTable.is_deltatable(self.uri):
                    raise
            if self.local is not None:
                sync_entry(str(self.local))
            return DeltaTable(self.uri)

    def require_free(self) -> None:
        """Raise ``FatalError`` if a new table would take over Parquet files that no log names.

        Its readers would not see their rows, and a vacuum would remove them.
        """
        with self.mapped("can't look for files in"):
            found = _first_parquet(self.uri, _DEEPEST)
            # another writer may have created the table, and committed files to it, since it was looked for
            if found is None or DeltaTable.is_deltatable(self.uri):
                return
        raise FatalError(
            f"{self.address} has Parquet files, such as {found}, and no Delta log: a table made there would leave out "
            "their rows, and VACUUM would remove them",
            code="delta.files_without_log",
            place=self.address,
            fix="name another folder; or make it a table first, with CONVERT TO DELTA; or restore its _delta_log",
        )

    def row_count(self) -> int | None:
        """Return the number of rows from the statistics of the table's files; None if a file has none."""
        table = self.open()
        if table is None or "deletionVectors" in (table.protocol().reader_features or ()):
            return None
        files = pa.table(table.get_add_actions(flatten=True))
        counts: list[int | None] = files.column("num_records").to_pylist()
        return None if None in counts else sum(count or 0 for count in counts)

    def first_rows(self, rows: int) -> list[dict[str, Any]]:
        """Return a few rows, in no particular order."""
        table = self.open()
        if table is None:
            return []
        # unlike the library's pyarrow dataset, its own engine reads tables with deletion vectors
        found = QueryBuilder().register("t", table).execute(f"SELECT * FROM t LIMIT {rows}").read_all()
        return pa.table(found).to_pylist()

    def writable(self, table: DeltaTable) -> Schema:
        """Return the columns that records can fill. Raises ``FatalError`` for a table that can't take staged parts."""
        metadata, protocol = table.metadata(), table.protocol()
        settings = metadata.configuration
        if metadata.partition_columns:
            raise self._unsupported(f"it is partitioned by {', '.join(metadata.partition_columns)}")
        if any(key.startswith("delta.constraints.") for key in settings):
            raise self._unsupported("it has check constraints")
        if settings.get("delta.columnMapping.mode", "none") != "none":
            raise self._unsupported("its columns are mapped to other names")
        if foreign := sorted(set(protocol.writer_features or ()) - SUPPORTED):
            raise self._unsupported(f"it has the features {', '.join(foreign)}")
        try:
            columns = writable(table.schema().to_json())
        except ValueError as error:
            raise self._unsupported(str(error)) from error
        if not len(columns):
            raise self._unsupported("it has no column that JSON can fill")
        return columns

    def require_lasting(self, table: DeltaTable) -> None:
        """Raise ``FatalError`` for a table that may forget which deliveries it has.

        If a retention for application transactions is set, Spark drops those without a last-update time at the next
        checkpoint, and others once they are old enough: a step may stay open longer than any retention.
        """
        kept = table.metadata().configuration.get(EXPIRY)
        if kept is not None:
            raise FatalError(
                f"the Delta table {self.address} forgets application transactions ({EXPIRY} is {kept}): it could not "
                "tell any more whether it has a delivery that is repeated",
                code="delta.transactions_expire",
                place=self.address,
                fix=f"ALTER TABLE … UNSET TBLPROPERTIES ('{EXPIRY}'), or choose delivery.strategy: at-least-once",
            )

    def _unsupported(self, why: str) -> FatalError:
        return FatalError(
            f"the Delta table {self.address} can't be appended to by this destination: {why}",
            code="delta.unsupported",
            place=self.address,
            fix="name another table, or no table yet to have one made",
        )

    @contextmanager
    def mapped(self, doing: str) -> Generator[None]:
        """Convert errors of the library to ours, without secrets and without Rust's stack trace."""
        try:
            yield
        except ConduitError:
            raise
        except (DeltaError, OSError, ValueError) as error:
            raise self._as_ours(error, f"{doing} {self.address}") from error

    def _as_ours(self, error: Exception, doing: str) -> ConduitError:
        if isinstance(error, OSError) and error.errno:
            return from_os_error(error, doing)
        # Rust reports the number of an operating system error only in the text; all of them are transient
        if number := _OS_ERROR.search(str(error)):
            return from_os_error(OSError(int(number[1] or number[2]), ""), doing)
        if (answer := _answer(str(error))) is not None:
            refused = any(word in str(error) for word in _REFUSED)
            return from_os_error(StoreError(errno.EACCES if refused else errno.EIO, answer, self.address), doing)
        text = (str(error).strip().splitlines() or [type(error).__name__])[0].replace(self.uri, self.address)
        if isinstance(error, DeltaProtocolError):
            return FatalError(
                f"{doing}: {text}",
                code="delta.protocol",
                place=self.address,
                fix="name a table that this version of deltalake writes to, or upgrade deltalake",
            )
        return TransientError(f"{doing}: {text}", code="delta.failed", place=self.address)


def _answer(text: str) -> str | None:
    """Return what an object store answered, or the innermost cause if it did not; None for any other error.

    The whole text quotes requests, with their signatures.
    """
    if _REQUEST not in text:
        return None
    if found := _MESSAGE.search(text):
        return found[1]
    lines = [line for line in (_MARKS.sub("", line).strip() for line in text.splitlines()) if line]
    return f"{lines[-1]}; {_HTTP}" if lines[-1] == _NOT_ALLOWED else lines[-1]


def _first_parquet(url: str, deepest: int) -> str | None:
    """Return the name of a Parquet file in a folder that is not hidden, or in a folder in it."""
    found = (name for name in storage.files(url) if name.endswith(".parquet") and name[0] not in HIDDEN)
    if (name := next(found, None)) is not None or not deepest:
        return name
    folders = (name for name in storage.folders(url) if name[0] not in HIDDEN)
    inside = ((folder, _first_parquet(storage.join(url, folder), deepest - 1)) for folder in folders)
    return next((f"{folder}/{name}" for folder, name in inside if name is not None), None)


_ENCODED: Final = re.compile("%[0-9a-fA-F]{2}")
_CONTROLS: Final = re.compile("[\x00-\x1f\x7f]")


def _misread(uri: str, local: Path | None) -> str | None:
    """Return what the library would read otherwise than the file system that stages the parts; None if nothing.

    Their files would be in one folder, and the log that names them in another.
    """
    path = str(local) if local is not None else uri.partition("://")[2].partition("/")[2]
    if _ENCODED.search(path):
        return "a percent sign with two digits"
    if _CONTROLS.search(path):
        return "a control character"
    if local is not None:
        return "a backslash" if "\\" in path else None
    if found := next((sign for sign in "?#" if sign in path), None):
        return f"the character {found}"
    if path != path.strip():
        return "blanks at its ends"
    names = path.rstrip("/").split("/")
    return "an empty name, . or .." if len(names) > 1 and {"", ".", ".."}.intersection(names) else None


def _without_secrets(url: str) -> str:
    parts = urlsplit(url)
    return urlunsplit((parts.scheme, parts.netloc.rpartition("@")[2], parts.path, "", ""))


_COMPUTED: Final = ("delta.invariants", "delta.generationExpression", "delta.identity.start")


def writable(delta_schema: str) -> Schema:
    """Return the columns of a table's schema (Delta's JSON) that JSON documents can fill; others stay null.

    Raises ``ValueError`` naming a column that can't be left out.
    """
    return pa.schema(_fields(json.loads(delta_schema)["fields"], ""))


def _fields(fields: list[dict[str, Any]], inside: str) -> list[Any]:
    kept: list[Any] = []
    for field in fields:
        made = _type(field["type"], f"{inside}{field['name']}.", is_nested=bool(inside))
        if any(key in field["metadata"] for key in _COMPUTED):
            raise ValueError(f"column {inside}{field['name']} is computed or checked by Delta")
        if made is not None:
            kept.append(_nullable_or_not(field["name"], made, field["nullable"], inside))
        elif not field["nullable"]:
            raise ValueError(f"column {inside}{field['name']} is required and of a type that JSON can't fill")
    return kept


def _type(kind: Any, inside: str, is_nested: bool) -> DataType | None:
    """Return the Arrow type, or None for a type without a JSON value: binary, maps, variants, nested dates."""
    if isinstance(kind, str):
        return None if kind == "date" and is_nested else primitive(kind)
    if kind["type"] == "struct":
        fields = _fields(kind["fields"], inside)
        return pa.struct(fields) if fields else None
    if kind["type"] == "array":
        item = _type(kind["elementType"], f"{inside}element.", is_nested=True)
        return None if item is None else pa.list_(_nullable_or_not("element", item, kind["containsNull"], inside))
    return None


def _nullable_or_not(name: str, kind: DataType, nullable: bool, inside: str) -> Any:
    # Arrow's reader treats a null object as one whose required fields are null
    if nullable and pa.types.is_struct(kind) and not all(field.nullable for field in kind):
        raise ValueError(f"column {inside}{name} may be null, and has required fields inside")
    return pa.field(name, kind, nullable)
