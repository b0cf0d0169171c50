"""Reading a Delta table, without ``to_pyarrow_table``: a process that called it may be aborted at its end."""

from __future__ import annotations

from pathlib import Path

from deltalake import DeltaTable, QueryBuilder


def column(table: Path, name: str) -> list[int]:
    """The values of a column, sorted."""
    rows = QueryBuilder().register("t", DeltaTable(str(table))).execute(f"select {name} as v from t").read_all()
    return sorted(int(value) for value in rows.column("v").to_pylist())
