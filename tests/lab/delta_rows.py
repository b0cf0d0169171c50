"""Reading of a Delta table with Delta's own reader.

Not by ``to_pyarrow_table``: a process that called it may be aborted at exit (deltalake 1.6, pyarrow 26).
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pyarrow as pa
from deltalake import DeltaTable, QueryBuilder


def queried(table: Path) -> list[dict[str, Any]]:
    """Return the rows, in any order."""
    found = QueryBuilder().register("t", DeltaTable(str(table))).execute("select * from t").read_all()
    return pa.table(found).to_pylist()


def column(table: Path, name: str) -> list[int]:
    """Return the values of a column, sorted."""
    return sorted(int(row[name]) for row in queried(table))
