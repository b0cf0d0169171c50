"""Questions as Arrow rows."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

from conduit_dagster.spark.sql.query import SqlQuery
from conduit_dagster.spark.sql.types import arrow


def question_schema(queries: Iterable[SqlQuery]) -> Any:
    """Return the Arrow schema of questions to these queries."""
    import pyarrow as pa

    asked = [(query.name, arrow(query.struct)) for query in queries]
    own = [("address", pa.string()), ("seq", pa.int64()), ("why", pa.bool_())]
    return pa.schema([*own, *asked, ("filler", pa.string())])


def rows_of(query: SqlQuery, columns: Sequence[Any], why: bool, schema: Any) -> Any:
    """Return a batch of questions to one query: one per row of ``columns``, of which there is at least one."""
    import pyarrow as pa

    count = len(columns[0])
    struct = pa.StructArray.from_arrays(columns, fields=list(schema.field(query.name).type))
    own = {"seq": pa.array(range(count), pa.int64()), "why": pa.repeat(pa.scalar(why), count), query.name: struct}
    return _batch(own, count, schema)


def filling(count: int, schema: Any, address: str | None = None, filler: str | None = None) -> Any:
    """Return rows without a question; the last one carries the filler."""
    import pyarrow as pa

    last = pa.array([*[None] * (count - 1), filler], pa.string())
    return _batch({"address": pa.array([address] * count, pa.string()), "filler": last}, count, schema)


def _batch(own: dict[str, Any], count: int, schema: Any) -> Any:
    import pyarrow as pa

    arrays = [own[field.name] if field.name in own else pa.nulls(count, field.type) for field in schema]
    return pa.RecordBatch.from_arrays(arrays, schema=schema)
