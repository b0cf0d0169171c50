"""Settings of the ``postgres`` destination, and what the source shares: the database, and the names of tables."""

from __future__ import annotations

import re
from typing import Annotated, Literal, NamedTuple, Self
from urllib.parse import quote, quote_plus

import msgspec
import psycopg
from psycopg import sql
from psycopg.conninfo import conninfo_to_dict
from pydantic import AfterValidator, ConfigDict, Field, model_validator

from conduit_dagster.config.findings import refuse
from conduit_dagster.config.scalars import PositiveServerDuration, ServerDuration, comma_separated
from conduit_dagster.expressions import ExpressionError, compile_template
from conduit_dagster.sdk import ConnectorSettings

_DRIVER = re.compile(r"^(postgres(?:ql)?)\+\w+://")
_SECRETS = ("password", "sslpassword")


def conninfo(url: str) -> dict[str, str]:
    """Return the libpq parameters of a URL; SQLAlchemy's ``postgresql+driver://`` is accepted as well.

    Raises ``ValueError`` without any part of the URL, which libpq's own message would quote.
    """
    try:
        found = conninfo_to_dict(_DRIVER.sub(r"\1://", url.strip()))
    except psycopg.Error:
        raise ValueError("the url is not a PostgreSQL URL") from None
    if not url.strip():
        raise ValueError("the url is empty")
    if not all(port.strip().isdigit() for port in str(found.get("port") or 5432).split(",") if port):
        raise ValueError("the port in the url is not a number")
    # a name that begins with it is a socket; elsewhere libpq's message and our place would show the rest of a password
    if any("@" in host[1:] for host in str(found.get("host") or "").split(",")):
        raise ValueError("the url has a second @, as an unescaped one of a password: write it as %40")
    return {key: str(value) for key, value in found.items() if value is not None}


class DatabaseServer(NamedTuple):
    """Public description of a database."""

    place: str
    """``host:port/database``."""
    database: str
    user: str
    secrets: tuple[str, ...]

    @staticmethod
    def of(parameters: dict[str, str]) -> DatabaseServer:
        """Return the public parts of libpq parameters."""
        host = parameters.get("host") or parameters.get("hostaddr") or "localhost"
        user = parameters.get("user", "")
        database = parameters.get("dbname") or user
        found = [parameters[name] for name in _SECRETS if parameters.get(name)]
        spellings = [form for text in found for form in (text, quote(text, safe=""), quote_plus(text))]
        place = f"{host}:{parameters.get('port') or 5432}/{database}"
        return DatabaseServer(place, database, user, tuple(sorted(set(spellings), key=len, reverse=True)))

    def scrub(self, text: str) -> str:
        """Return ``text`` with the passwords of the URL replaced by ``***``."""
        for secret in self.secrets:
            text = text.replace(secret, "***")
        return text.strip()


NAME_BYTES = 63
"""Maximum bytes of a name: PostgreSQL silently truncates longer ones, which would then never be found."""
STATE_TABLES = frozenset(
    f"conduit_{name}"
    for name in (
        "collections", "consumers", "dead_letter_parts", "dead_letters", "generations", "history", "kept_values",
        "launches", "log_parts", "logs", "meta", "migrations", "offsets", "owners", "pipelines", "recoveries",
        "sources", "step_deliveries", "steps",
    )
)  # fmt: skip
"""Tables of the state store, which may be in the same database and schema as the destination."""


class TableName(msgspec.Struct, frozen=True, order=True):
    """A table in its schema."""

    schema: str
    name: str

    def __str__(self) -> str:
        # only what parse would take apart is quoted: positions name tables like this
        schema = in_quotes(self.schema) if "." in self.schema or self.schema.startswith('"') else self.schema
        return f"{schema}.{self.name}"

    @staticmethod
    def parse(text: str) -> TableName:
        """Return the table of which ``text`` is the ``str``."""
        first = _piece(text)
        return TableName(first.text, first.rest[1:])

    @property
    def quoted(self) -> sql.Identifier:
        """Quoted name as SQL."""
        return sql.Identifier(self.schema, self.name)

    @property
    def typed(self) -> str:
        """Name for a statement that is to be typed."""
        return f"{typed_name(self.schema)}.{typed_name(self.name)}"


def table_text(name: TableName, schema: str) -> str:
    """Return the text of which :func:`table_name` makes this table, without the schema if it is ``schema``."""
    parts = [name.name] if name.schema == schema else [name.schema, name.name]
    return ".".join(in_quotes(part) if _needs_quotes(part) else part for part in parts)


def _needs_quotes(part: str) -> bool:
    return "." in part or part.startswith('"') or part != part.strip()


def in_quotes(name: str) -> str:
    """Return a name in double quotes, as in SQL."""
    return '"' + name.replace('"', '""') + '"'


_PLAIN = re.compile(r"[a-z_][a-z0-9_$]*")


def typed_name(name: str) -> str:
    """Return a name for a statement that is to be typed: in double quotes only where it needs them."""
    return name if _PLAIN.fullmatch(name) else in_quotes(name)


class _Piece(NamedTuple):
    text: str
    rest: str


def table_name(text: str, schema: str) -> TableName:
    """Parse ``name`` or ``schema.name``, each part optionally in double quotes. Raises ``ValueError`` for an invalid
    name."""
    first = _piece(text.strip())
    if not first.rest:
        return TableName(schema, _checked(first.text))
    if not first.rest.startswith("."):
        raise ValueError(f"{text!r} is not a table name")
    return TableName(_checked(first.text), _checked(_last(first.rest[1:])))


def _piece(text: str) -> _Piece:
    if text.startswith('"'):
        end = _closing(text)
        if end > 0:
            return _Piece(text[1:end].replace('""', '"'), text[end + 1 :])
    name, dot, rest = text.partition(".")
    return _Piece(name, dot + rest)


def _closing(text: str) -> int:
    """Return the index of the closing quote, or 0 if there is none."""
    at = text.find('"', 1)
    while at > 0 and text[at + 1 : at + 2] == '"':
        at = text.find('"', at + 2)
    return max(at, 0)


def _last(text: str) -> str:
    piece = _piece(text)
    return piece.text if not piece.rest else text


def _checked(name: str) -> str:
    if not name or "\0" in name:
        raise ValueError("the name of the table is empty" if not name else "the name of the table holds a NUL")
    if len(name.encode()) > NAME_BYTES:
        raise ValueError(f"the name {name[:NAME_BYTES]}… is longer than {NAME_BYTES} bytes")
    return name


def require_user_table(name: TableName, claims: str) -> TableName:
    """Validate a table name that comes from a record. Raises ``ValueError`` for a system table, for our own ``claims``
    table and for the state store's tables: a record must not be able to write the hash of a delivery, or an offset.
    """
    is_ours = name.name == claims or name.name in STATE_TABLES
    if name.schema.startswith("pg_") or name.schema == "information_schema" or is_ours:
        raise ValueError(f"{name} is not a table for records")
    return name


def renamed(text: str) -> dict[str, str]:
    """Parse ``field:column,…``. Raises ``ValueError`` for a pair without a colon and for a duplicate name."""
    pairs = [item.partition(":") for item in comma_separated(text)]
    if bad := [f"{field}{colon}{column}" for field, colon, column in pairs if not field.strip() or not column.strip()]:
        raise ValueError(f"{bad[0]!r} is not a FIELD:COLUMN pair")
    made = {field.strip(): column.strip() for field, _, column in pairs}
    if len(made) < len(pairs) or len(set(made.values())) < len(pairs):
        raise ValueError("a field or a column is named twice")
    return made


def _table(text: str) -> str:
    if not text.strip():
        raise refuse("the table is empty", fix="name a table, or a template that gives its name")
    try:
        compile_template(text)
    except ExpressionError as error:
        raise refuse(error.message, code="expression", fix=error.fix) from None
    return text


def _mapping(text: str) -> str:
    try:
        renamed(text)
    except ValueError as error:
        raise refuse(str(error), fix="write it as name:column,other:column2") from None
    return text


class DatabaseSettings(ConnectorSettings):
    """Connection settings that source and destination share."""

    model_config = ConfigDict(hide_input_in_errors=True)

    url: str = Field(repr=False)
    """The database: ``postgresql://user:password@host:5432/database``, with libpq's parameters after a ``?``."""
    connect_timeout: PositiveServerDuration = Field(10.0, alias="connect-timeout")
    """How long connecting may take."""
    statement_timeout: ServerDuration = Field(0.0, alias="statement-timeout")
    """How long one statement may run, a whole COPY included; 0s: no limit."""
    lock_timeout: ServerDuration = Field(60.0, alias="lock-timeout")
    """How long to wait for a lock, such as that of another run's open transaction; 0s: forever."""

    @model_validator(mode="after")
    def _check(self) -> Self:
        # not a field validator: its error would show the value of the field, which contains the password
        try:
            conninfo(self.url)
        except ValueError as error:
            raise refuse(str(error), fix="write it as postgresql://user:password@host:5432/database") from None
        return self


class PostgresDestinationSettings(DatabaseSettings):
    """Writes records as rows: the field ``name`` goes into the column ``name``."""

    table: Annotated[str, AfterValidator(_table)] = '{{ index .Metadata "opencdc.collection" }}'
    """The table, optionally as ``schema.table``, or a Go template that returns its name for each record."""
    db_schema: str = Field("public", alias="schema")
    """The schema of table names without one, and of the table ``conduit_deliveries``; if ``table`` is a fixed name with
    a schema, ``conduit_deliveries`` is in that schema instead."""
    key: str = ""
    """The key columns, separated by commas; there must be a unique index on exactly these. If empty, the fields of
    ``.Key`` are used, provided that is a document or its JSON text. All of its fields become columns either way."""
    on_conflict: Literal["error", "update", "ignore"] = Field("error", alias="on-conflict")
    """What to do with a ``create`` whose key already exists. ``error``: it is nacked; ``update``: it replaces the row's
    values; ``ignore``: the row stays unchanged. An update that changes a key to one that already exists is nacked; with
    ``update`` it replaces that row."""
    mapping: Annotated[str, AfterValidator(_mapping)] = ""
    """Fields that go into columns with another name: ``name:column,other:column2``."""
    unmapped: Literal["error", "ignore", "json"] = "error"
    """What to do with fields without a column. ``error``: the record is nacked; ``ignore``: they are dropped; ``json``:
    they are stored as one JSON object in ``unmapped-column``."""
    unmapped_column: str = Field("unmapped", alias="unmapped-column")
    """The column for ``unmapped: json``."""
    raw_column: str = Field("", alias="raw-column")
    """The column for a raw payload, ``bytea`` or text. If empty, a raw payload must be a JSON object."""
    create_table: Literal["never", "auto"] = Field("never", alias="create-table")
    """``auto`` creates a missing table from the fields of the first delivery, with ``key`` as primary key."""
    on_missing_table: Literal["nack", "fail"] | None = Field(None, alias="on-missing-table")
    """What to do if a record's table or schema does not exist or can't be written. ``nack``: only that record is nacked
    (default if records choose the table); ``fail``: the pipeline fails (default for a fixed table)."""

    on_deliveries_gone: Literal["fail", "resend"] = Field("fail", alias="on-deliveries-gone")
    """With exactly-once: what to do with a prepared step if ``conduit_deliveries`` was dropped or emptied meanwhile, so
    that nothing says whether the step was written. ``fail``: the pipeline stops; ``resend``: it is written, perhaps
    again."""

    @property
    def nacks_missing_tables(self) -> bool:
        """Whether a missing table nacks its records: ``on-missing-table``, or its default."""
        if self.on_missing_table is not None:
            return self.on_missing_table == "nack"
        return compile_template(self.table).literal is None

    @property
    def key_columns(self) -> tuple[str, ...]:
        """Column names in ``key``."""
        return comma_separated(self.key)

    @property
    def renames(self) -> dict[str, str]:
        """Columns by field, from ``mapping``."""
        return renamed(self.mapping)
