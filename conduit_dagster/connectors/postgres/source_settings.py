"""Settings of the ``postgres`` source, with Conduit's names."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Annotated, ClassVar, Literal, Self

from pydantic import AfterValidator, Field, model_validator

from conduit_dagster.config.findings import refuse
from conduit_dagster.config.scalars import Duration
from conduit_dagster.connectors.postgres.settings import DatabaseSettings, TableName, table_name

ALL_TABLES = "*"
_SLOT = re.compile(r"^[a-z0-9_]{1,63}$")
_BETWEEN_COMMAS = re.compile(r'(?:"(?:[^"]|"")*"|[^,])+')


def _names(text: str) -> list[str]:
    """Return the names of a list separated by commas outside quotes."""
    return [name for piece in _BETWEEN_COMMAS.findall(text) if (name := piece.strip())]


def _tables(text: str) -> str:
    names = _names(text)
    if not names:
        raise refuse("no table is named", fix="name tables, separated by commas, or * for all of a schema")
    if ALL_TABLES in names and len(names) > 1:
        raise refuse("* stands for all tables, so no others can be named with it", fix="name one or the other")
    try:
        for name in names:
            if name != ALL_TABLES:
                table_name(name, "public")
    except ValueError as error:
        raise refuse(str(error), fix='write a table as name, schema.name or "Name"') from None
    return text


def _slot(text: str) -> str:
    if not _SLOT.match(text):
        message = f"{text!r} is not a name for a replication slot"
        raise refuse(message, fix="use small letters, digits and _, 63 at most")
    return text


class PostgresSourceSettings(DatabaseSettings):
    """Reads tables of a PostgreSQL database: first their rows, then all changes, by logical replication."""

    idle_keys: ClassVar[Mapping[str, str]] = {
        "snapshot.fetchSize": "rows are read in a stream, not fetch by fetch",
        "logrepl.withAvroSchema": "records carry no schemas here: avro.encode and avro.decode know a registry",
    }

    tables: Annotated[str, AfterValidator(_tables)]
    """The tables, separated by commas, each optionally as ``schema.table``; a name with a dot or a comma in double
    quotes. ``*``: all tables of ``schema`` but this project's own (``conduit_deliveries``, the state store's)."""
    db_schema: str = Field("public", alias="schema")
    """The schema of table names without one, and of ``*``."""
    snapshot_mode: Literal["initial", "never", "initial_only"] = Field("initial", alias="snapshotMode")
    """``initial``: all rows are copied, then changes are read; ``never``: only changes, from the first run on;
    ``initial_only``: only the rows are copied."""
    cdc_mode: Literal["auto", "logrepl", "long_polling"] = Field("auto", alias="cdcMode")
    """How changes are read: ``auto`` and ``logrepl`` by logical replication; ``long_polling`` by polling for new rows,
    for users without the REPLICATION privilege. Polling finds no deletes."""
    polling_column: str = Field("", alias="polling.column")
    """For ``long_polling``: a column of each table that only grows and is never null, such as ``updated_at``; it finds
    new and updated rows. If empty, the key is polled, which finds only new rows."""
    on_schema_change: Literal["continue", "stop"] = Field("continue", alias="onSchemaChange")
    """What to do if the columns or types of a table change during logical replication. ``continue``: each record has
    the columns of its time; ``stop``: the pipeline stops before the first such record."""
    publication: str = Field("conduitpub", alias="logrepl.publicationName")
    """The publication. If it does not exist, it is created for ``tables``; one created by others is used unchanged, and
    must contain all tables."""
    slot: Annotated[str, AfterValidator(_slot)] = Field("conduitslot", alias="logrepl.slotName")
    """The replication slot. It is created if it does not exist. No two pipelines may share one."""
    auto_cleanup: bool = Field(True, alias="logrepl.autoCleanup")
    """Whether ``pipelines delete`` drops the slot, and the publication if the pipeline created it."""
    heartbeat: Duration = Field(60.0)
    """How long the server keeps WAL without changes of these tables; 0s: until there is a change."""

    @model_validator(mode="after")
    def _has_followed(self) -> Self:
        if self.polling_column and not self.is_polled:
            message = "it is for cdcMode: long_polling only"
            raise refuse(message, fix="leave it out, or set cdcMode: long_polling")
        return self

    @property
    def is_polled(self) -> bool:
        """Whether changes are found by polling."""
        return self.cdc_mode == "long_polling" and self.snapshot_mode != "initial_only"

    @property
    def published_by(self) -> str:
        """The publication that selects columns and rows; empty if changes are not read from a slot."""
        return "" if self.is_polled or self.snapshot_mode == "initial_only" else self.publication

    @property
    def named_tables(self) -> tuple[TableName, ...] | None:
        """The listed tables, in order; None: all."""
        names = _names(self.tables)
        return None if ALL_TABLES in names else tuple(dict.fromkeys(table_name(n, self.db_schema) for n in names))
