"""A random history of a few tables: parallel transactions, every kind of change, and changes of the tables."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from copy import deepcopy
from dataclasses import dataclass, field
from random import Random
from types import TracebackType
from typing import Any, Self

import psycopg

from lab.random_values import LITERALS, Literal, large, words

SIDE_BY_SIDE = 3
"""Number of parallel transactions; each has its own rows, so that none waits for another."""
_MOST = 25
"""Maximum number of rows per table and connection."""
Row = tuple[str, ...]
"""A row's key, as SQL."""


@dataclass
class Table:
    """A table whose rows have an integer ``id``, and other columns that a history changes."""

    name: str
    """``schema.table``, as SQL."""
    definition: str
    """Its columns, and the clauses after their parentheses."""
    columns: dict[str, Literal]
    more: str = ""
    """SQL to run after its creation."""
    key: tuple[str, ...] = ("id",)
    """Columns that identify a row, with ``id`` last."""
    is_changed: bool = True
    """Whether columns are added and dropped."""
    is_moved: bool = True
    """Whether rows get other keys."""
    added: dict[str, str] = field(default_factory=dict[str, str])
    """Columns that a history added, and their types."""


def tables() -> list[Table]:
    """Return tables with every kind of key and identity."""
    kinds = {f"c{place}": kind for place, kind in enumerate(LITERALS)}
    typed = ", ".join(f"{name} {kind}" for name, kind in kinds.items())
    plain: dict[str, Literal] = {"t": words, "n": LITERALS["integer"]}
    big: dict[str, Literal] = {**plain, "big": large, "doc": lambda rng: f"jsonb_build_object('k', {large(rng)})"}
    apart = "ALTER TABLE {0} ALTER big SET STORAGE EXTERNAL, ALTER doc SET STORAGE EXTERNAL"
    full = "ALTER TABLE {0} REPLICA IDENTITY FULL"
    bigs = "(id int PRIMARY KEY, t text NOT NULL DEFAULT 'q', n int, big text, doc jsonb)"
    return [
        Table("public.kinds", f"(id bigint PRIMARY KEY, {typed})", {n: LITERALS[k] for n, k in kinds.items()}),
        Table("public.large", bigs, big, apart),
        Table("public.whole", bigs, big, f"{apart}; {full}"),
        Table("public.pair", "(x text, n int, id int, t text, PRIMARY KEY (id, x))", plain, key=("x", "id")),
        Table(
            "public.indexed", "(t text, id int NOT NULL UNIQUE, n int)", plain,
            "ALTER TABLE {0} REPLICA IDENTITY USING INDEX indexed_id_key",
        ),
        Table("public.keyless", "(id int, t text, n int)", plain, full),
        Table(
            "public.parts", "(id int PRIMARY KEY, t text, n int) PARTITION BY RANGE (id)", plain,
            "CREATE TABLE parts1 PARTITION OF {0} FOR VALUES FROM (MINVALUE) TO (150);"
            "CREATE TABLE parts2 PARTITION OF {0} DEFAULT",
            is_changed=False,
        ),
        Table('other."T x"', '(id int PRIMARY KEY, t text, n int, "a B" int DEFAULT 5)', plain),
    ]  # fmt: skip


class PostgresHistory:
    """A history determined by its seed. A context manager: on exit all transactions are closed."""

    def __init__(self, url: str, seed: int, of: Sequence[Table] | None = None) -> None:
        self._rng = Random(seed)
        self._url = url
        self.tables = tables() if of is None else of
        self._last = 0
        self._rows: list[dict[str, list[Row]]] = [{t.name: [] for t in self.tables} for _ in range(SIDE_BY_SIDE)]
        self._before: list[dict[str, list[Row]] | None] = [None] * SIDE_BY_SIDE
        """The rows that a rollback restores; None without an open transaction."""
        self.identities: list[tuple[int, str, bool]] = []
        """Transaction (xid) from which a table sends whole rows, or no longer does."""

    def __enter__(self) -> Self:
        self._connections = [psycopg.connect(self._url, autocommit=True) for _ in range(SIDE_BY_SIDE)]
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        for connection in self._connections:
            connection.close()

    def create(self) -> None:
        """Create the tables."""
        self._run(0, "CREATE SCHEMA IF NOT EXISTS other")
        for table in self.tables:
            self._run(0, f"CREATE TABLE {table.name} {table.definition}")
            if table.more:
                self._run(0, table.more.format(table.name))
            self.identities.append((0, table.name, "IDENTITY FULL" in table.more))

    def run(self, steps: int) -> None:
        """Make this many changes, then close all transactions."""
        for _ in range(steps):
            if self._rng.random() < 0.03:
                self._close_all()
                alters = [self._alter] * 3 if any(table.is_changed for table in self.tables) else []
                self._rng.choice([self._truncate, self._identify, *alters])()
            else:
                self._act(self._rng.randrange(SIDE_BY_SIDE))
        self._close_all()

    def sends_rows(self, name: str, xid: int) -> bool:
        """Return whether a transaction's changes of a table contain whole rows as they were before."""
        known = [(since, whole) for since, table, whole in self.identities if _plain(table) == _plain(name)]
        return [whole for since, whole in known if since <= xid][-1]

    # -- transactions -------------------------------------------------------------------------------------------

    def _run(self, owner: int, statement: str) -> Any:
        return self._connections[owner].execute(statement.encode())

    def _act(self, owner: int) -> None:
        if self._before[owner] is None and self._rng.random() < 0.7:
            self._run(owner, "BEGIN")
            self._before[owner] = deepcopy(self._rows[owner])
        self._change(owner)
        if self._before[owner] is not None:
            chosen = self._rng.random()
            if chosen < 0.1:
                self._try_in_vain(owner)
            elif chosen < 0.35:
                self._close(owner, "COMMIT" if chosen < 0.3 else "ROLLBACK")

    def _try_in_vain(self, owner: int) -> None:
        """Roll a part of a transaction back."""
        before = deepcopy(self._rows[owner])
        self._run(owner, "SAVEPOINT s")
        self._change(owner)
        self._change(owner)
        if self._rng.random() < 0.5:
            self._run(owner, "ROLLBACK TO s")
            self._rows[owner] = before
        self._run(owner, "RELEASE s")

    def _close(self, owner: int, how: str) -> None:
        before = self._before[owner]
        self._run(owner, how)
        if how == "ROLLBACK" and before is not None:
            self._rows[owner] = before
        self._before[owner] = None

    def _close_all(self) -> None:
        for owner in range(SIDE_BY_SIDE):
            if self._before[owner] is not None:
                self._close(owner, "COMMIT")

    # -- changes of rows ----------------------------------------------------------------------------------------

    def _change(self, owner: int) -> None:
        table = self._rng.choice(self.tables)
        rows = self._rows[owner][table.name]
        changes: list[Callable[[int, Table, list[Row]], None]] = [self._insert]
        if len(rows) > _MOST:
            changes = [self._delete]
        elif rows:
            changes = [self._insert, self._insert_many, self._update, self._update, self._update_all, self._delete]
            changes += [self._move if table.is_moved else self._update, self._upsert, self._touch]
        self._rng.choice(changes)(owner, table, rows)

    def _new(self, owner: int, table: Table) -> Row:
        self._last += 1
        number = str(self._last * SIDE_BY_SIDE + owner)
        return (words(self._rng), number) if len(table.key) > 1 else (number,)

    def _values(self, table: Table) -> dict[str, str]:
        known = {**table.columns, **{name: LITERALS[kind] for name, kind in table.added.items()}}
        chosen = [name for name in known if self._rng.random() < 0.6] or ["t" if "t" in known else "c0"]
        return {name: "NULL" if name != "t" and self._rng.random() < 0.2 else known[name](self._rng) for name in chosen}

    def _row(self, table: Table, row: Row) -> dict[str, str]:
        return {**dict(zip(table.key, row, strict=True)), **self._values(table)}

    def _insert(self, owner: int, table: Table, rows: list[Row], more: str = "") -> None:
        rows.append(self._new(owner, table))
        values = self._row(table, rows[-1])
        self._run(owner, f"INSERT INTO {table.name} ({', '.join(values)}) VALUES ({', '.join(values.values())}){more}")

    def _insert_many(self, owner: int, table: Table, rows: list[Row]) -> None:
        made = [self._new(owner, table) for _ in range(self._rng.randrange(2, 6))]
        rows += made
        values = ", ".join(f"({', '.join(row)})" for row in made)
        self._run(owner, f"INSERT INTO {table.name} ({', '.join(table.key)}) VALUES {values}")

    def _upsert(self, owner: int, table: Table, rows: list[Row]) -> None:
        if len(table.key) > 1 or table.name == "public.keyless":
            self._update(owner, table, rows)
            return
        row, name = self._rng.choice(rows), next(iter(table.columns))
        known = self._row(table, row)
        known[name] = table.columns[name](self._rng)
        values = f"({', '.join(known)}) VALUES ({', '.join(known.values())})"
        change = f"ON CONFLICT (id) DO UPDATE SET {name} = excluded.{name}"
        self._run(owner, f"INSERT INTO {table.name} {values} {change}")

    def _update(self, owner: int, table: Table, rows: list[Row]) -> None:
        self._set(owner, table, self._rng.choice(rows), self._values(table))

    def _touch(self, owner: int, table: Table, rows: list[Row]) -> None:
        """Run an update that changes nothing."""
        name = next(iter(table.columns))
        self._set(owner, table, self._rng.choice(rows), {name: name})

    def _move(self, owner: int, table: Table, rows: list[Row]) -> None:
        """Change a key, and sometimes other values."""
        old, new = rows.pop(self._rng.randrange(len(rows))), self._new(owner, table)
        rows.append(new)
        values = self._values(table) if self._rng.random() < 0.5 else {}
        self._set(owner, table, old, {**dict(zip(table.key, new, strict=True)), **values})

    def _set(self, owner: int, table: Table, row: Row, values: dict[str, str]) -> None:
        changes = ", ".join(f"{name} = {value}" for name, value in values.items())
        self._run(owner, f"UPDATE {table.name} SET {changes} WHERE {_where(table, row)}")

    def _update_all(self, owner: int, table: Table, rows: list[Row]) -> None:
        values = self._values(table)
        changes = ", ".join(f"{name} = {value}" for name, value in values.items())
        self._run(owner, f"UPDATE {table.name} SET {changes} WHERE id % {SIDE_BY_SIDE} = {owner}")

    def _delete(self, owner: int, table: Table, rows: list[Row]) -> None:
        row = rows.pop(self._rng.randrange(len(rows)))
        self._run(owner, f"DELETE FROM {table.name} WHERE {_where(table, row)}")

    # -- changes of tables, while no transaction is open ------------------------------------------------------------

    def _truncate(self) -> None:
        chosen = self._rng.sample(self.tables, self._rng.randrange(1, len(self.tables)))
        self._run(0, f"TRUNCATE {', '.join(table.name for table in chosen)}")
        for rows in self._rows:
            rows.update({table.name: [] for table in chosen})

    def _identify(self) -> None:
        table = self._rng.choice([table for table in self.tables if not table.more or table.name == "public.large"])
        whole = not self.sends_rows(table.name, 1 << 62)
        self._run(0, "BEGIN")
        (xid,) = self._run(0, "SELECT pg_current_xact_id()::text::int8").fetchone()
        self._run(0, f"ALTER TABLE {table.name} REPLICA IDENTITY {'FULL' if whole else 'DEFAULT'}")
        self._run(0, "COMMIT")
        self.identities.append((xid, table.name, whole))

    def _alter(self) -> None:
        """Alter a table in a transaction that also changes rows, before it and after."""
        table = self._rng.choice([table for table in self.tables if table.is_changed])
        before, added = deepcopy(self._rows[0]), dict(table.added)
        self._run(0, "BEGIN")
        self._insert(0, table, self._rows[0][table.name])
        self._alter_columns(table)
        self._insert(0, table, self._rows[0][table.name])
        if self._rng.random() < 0.2:
            self._run(0, "ROLLBACK")
            self._rows[0], table.added = before, added
        else:
            self._run(0, "COMMIT")

    def _alter_columns(self, table: Table) -> None:
        self._last += 1
        new = f"d{self._last}"
        if not table.added or self._rng.random() < 0.4:
            kind = self._rng.choice(("integer", "text", "numeric", "timestamptz"))
            default = self._rng.choice(("", f" DEFAULT {LITERALS[kind](self._rng)}"))
            self._run(0, f"ALTER TABLE {table.name} ADD {new} {kind}{default}")
            table.added[new] = kind
            return
        name = self._rng.choice(list(table.added))
        kind = table.added.pop(name)
        chosen = self._rng.randrange(3)
        if chosen == 0:
            self._run(0, f"ALTER TABLE {table.name} DROP {name}")
        elif chosen == 1:
            self._run(0, f"ALTER TABLE {table.name} RENAME {name} TO {new}")
            table.added[new] = kind
        else:
            self._run(0, f"ALTER TABLE {table.name} ALTER {name} DROP DEFAULT, ALTER {name} TYPE text")
            table.added[name] = "text"


def _where(table: Table, row: Row) -> str:
    return " AND ".join(f"{name} = {value}" for name, value in zip(table.key, row, strict=True))


def _plain(name: str) -> str:
    return name.replace('"', "")
