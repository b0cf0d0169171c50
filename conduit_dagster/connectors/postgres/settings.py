"""Settings of the ``postgres`` destination."""

from __future__ import annotations

from typing import Annotated, Any, Literal, LiteralString, cast

from pydantic import AfterValidator, ConfigDict, Field, model_validator
from pydantic_core import PydanticCustomError

from conduit_dagster.config.scalars import Duration, PositiveDuration
from conduit_dagster.connectors.postgres.names import listed, renamed
from conduit_dagster.connectors.postgres.url import conninfo
from conduit_dagster.expressions import ExpressionError, compile_template
from conduit_dagster.sdk import ConnectorSettings


def _refused(kind: LiteralString, message: str, fix: str | None) -> PydanticCustomError:
    return PydanticCustomError(kind, "{message}", {"message": message, "fix": fix})


def _table(text: str) -> str:
    if not text.strip():
        raise _refused("table", "the table is empty", "name a table, or a template that gives its name")
    try:
        compile_template(text)
    except ExpressionError as error:
        raise _refused("expression", error.message, error.fix) from None
    return text


def _mapping(text: str) -> str:
    try:
        renamed(text)
    except ValueError as error:
        raise _refused("mapping", str(error), "write it as name:column,other:column2") from None
    return text


class PostgresDestinationSettings(ConnectorSettings):
    """Writes documents as rows: the field ``name`` goes into the column ``name``."""

    model_config = ConfigDict(hide_input_in_errors=True)

    url: str = Field(repr=False)
    """The database: ``postgresql://user:password@host:5432/database``, with libpq's parameters behind a ``?``."""
    table: Annotated[str, AfterValidator(_table)] = '{{ index .Metadata "opencdc.collection" }}'
    """The table, or a Go template that gives its name for a record. ``schema.table`` names its schema as well."""
    db_schema: str = Field("public", alias="schema")
    """The schema of tables that name none, and of the table ``conduit_deliveries``, unless ``table`` is one fixed
    name with a schema: then it is there."""
    key: str = ""
    """The columns that a record is found by, separated by commas; there must be a unique index on just these. Where
    it is empty the names of the fields of ``.Key`` are taken, where that is a document."""
    on_conflict: Literal["error", "update", "ignore"] = Field("error", alias="on-conflict")
    """What becomes of a ``create`` whose key is there already. ``error``: it is nacked; ``update``: it replaces the
    row's values; ``ignore``: the row stays as it is."""
    mapping: Annotated[str, AfterValidator(_mapping)] = ""
    """Fields that go into columns of another name: ``name:column,other:column2``."""
    unmapped: Literal["error", "ignore", "json"] = "error"
    """What becomes of fields that have no column. ``error``: the record is nacked; ``ignore``: they are dropped;
    ``json``: they go as one object into ``unmapped-column``."""
    unmapped_column: str = Field("unmapped", alias="unmapped-column")
    """The column for ``unmapped: json``."""
    raw_column: str = Field("", alias="raw-column")
    """The column for a raw payload, as ``bytea`` or text. Where it is empty a raw payload must be a JSON object."""
    create_table: Literal["never", "auto"] = Field("never", alias="create-table")
    """``auto`` creates a table that is missing from the fields of the first delivery, with ``key`` as primary key."""
    connect_timeout: PositiveDuration = Field(10.0, alias="connect-timeout")
    """How long connecting may take."""
    statement_timeout: Duration = Field(0.0, alias="statement-timeout")
    """How long one statement may run, a whole COPY included; 0s: as long as it takes."""
    lock_timeout: Duration = Field(60.0, alias="lock-timeout")
    """How long to wait for a lock, such as for another run's open transaction; 0s: for ever."""

    @model_validator(mode="after")
    def _check(self) -> PostgresDestinationSettings:
        # not a validator of the field: a finding about a field shows what was written there, and that is a secret
        try:
            conninfo(self.url)
        except ValueError as error:
            raise _refused("url", str(error), "write it as postgresql://user:password@host:5432/database") from None
        return self

    @property
    def key_columns(self) -> tuple[str, ...]:
        """``key`` as names."""
        return listed(self.key)

    @property
    def renames(self) -> dict[str, str]:
        """``mapping`` as field to column."""
        return renamed(self.mapping)


def as_settings(settings: Any) -> PostgresDestinationSettings:
    """The settings as the destination's own model."""
    return cast(PostgresDestinationSettings, settings)
