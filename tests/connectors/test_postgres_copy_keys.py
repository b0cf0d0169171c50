"""Keys of interrupted copies: labels that were renamed, domains, and a key that is another one by now."""

from __future__ import annotations

from typing import Any

import pytest
from lab.postgres_reading import PostgresReading, drained, records_of, told, travelled

from conduit_dagster.connectors.postgres.source import PostgresSource
from conduit_dagster.recovery.errors import FatalError
from conduit_dagster.sdk import Limit, Position

WIDE = 10**9
ENUM = "CREATE TYPE e AS ENUM ('k', 'l', 'm', 'n'); CREATE DOMAIN d AS e"


def rest(source: PostgresSource, position: Position) -> list[tuple[Any, ...]]:
    """The following changes, in short."""
    return [told(record) for record in drained(source, position)[0]]


def half_of_labels(reading: PostgresReading, kind: str) -> Position:
    """Rows k and l of four are copied, by a run that ended."""
    reading.execute(f"{ENUM}; CREATE TABLE a (id {kind} PRIMARY KEY, v int DEFAULT 0)")
    reading.execute("INSERT INTO a VALUES ('k'), ('l'), ('m'), ('n')")
    source = reading.source()
    end = source.latest(source.initial(), Limit(2, WIDE))
    assert [one.key for one in records_of(source, source.initial(), end)] == [{"id": "k"}, {"id": "l"}]
    source.close()
    return travelled(end)


@pytest.mark.parametrize("kind", ["e", "d"])
@pytest.mark.parametrize("names", [["l>o"], ["l>o", "n>l", "o>n"]], ids=["gone", "exchanged"])
def test_a_copy_does_not_go_on_behind_a_label_that_was_renamed(
    reading: PostgresReading, kind: str, names: list[str]
) -> None:
    """Its name is none any more, or that of the last row: the others would never come."""
    position = half_of_labels(reading, kind)
    for name in names:
        old, new = name.split(">")
        reading.execute(f"ALTER TYPE e RENAME VALUE '{old}' TO '{new}'")
    with pytest.raises(FatalError, match="other labels") as caught:
        drained(reading.source(), position)
    assert caught.value.code == "postgres.order_changed"


def test_a_copy_goes_on_with_more_labels(reading: PostgresReading) -> None:
    position = half_of_labels(reading, "e")
    reading.execute("ALTER TYPE e ADD VALUE 'lm' BEFORE 'm'; ALTER TYPE e RENAME VALUE 'm' TO 'mm'")
    reading.execute("INSERT INTO a VALUES ('lm')")
    assert [(operation, key["id"]) for operation, _, key, *_ in rest(reading.source(), position)] == [
        ("snapshot", "lm"), ("snapshot", "mm"), ("snapshot", "n"),
    ]  # fmt: skip


def test_a_change_with_a_label_that_was_renamed_can_not_be_compared(reading: PostgresReading) -> None:
    position = half_of_labels(reading, "e")
    reading.execute("UPDATE a SET v = 1")
    source = reading.source()
    copied = travelled(source.latest(position, Limit(100, WIDE)))
    assert len(records_of(source, position, copied)) == 2
    source.ack(copied, 1)
    reading.execute("ALTER TYPE e RENAME VALUE 'm' TO 'mm'")
    with pytest.raises(FatalError, match="other labels"):
        drained(source, copied)


@pytest.mark.parametrize(
    ("change", "key"),
    [
        ("ALTER TYPE e RENAME VALUE 'l' TO 'll'", "id"),
        ("ALTER TABLE a DROP CONSTRAINT a_pkey, ADD PRIMARY KEY (n)", "n"),
        ("ALTER TABLE a DROP CONSTRAINT a_pkey, ADD PRIMARY KEY (n, v, id)", "v"),
    ],
    ids=["label", "type", "width"],
)
def test_changes_behind_all_parts_of_a_copy_need_no_comparison(reading: PostgresReading, change: str, key: str) -> None:
    """Their key may be another one than that of the copy."""
    position = half_of_labels(reading, "e")
    reading.execute("ALTER TABLE a ADD n int GENERATED ALWAYS AS IDENTITY, ALTER v SET NOT NULL")
    source = reading.source()
    copied = travelled(source.latest(position, Limit(100, WIDE)))
    assert len(records_of(source, position, copied)) == 2
    source.ack(copied, 1)
    source.close()
    reading.execute(f"UPDATE a SET v = 7; {change}; DELETE FROM a")
    found = rest(reading.source(), copied)
    assert [one[0] for one in found[-4:]] == ["delete"] * 4 and all(key in one[2] for one in found[-4:])


@pytest.mark.parametrize(
    ("kind", "rows"),
    [
        ("d", ["k", "l", "m"]),
        ("e[]", ["{k}", "{l,k}", "{m}"]),
        ("int4range", ["[1,2)", "[2,9)", "[3,4)"]),
        ("pair", ["(1,k)", "(1,l)", "(2,k)"]),
    ],
)
def test_a_key_of_a_domain_over_any_type_is_compared(reading: PostgresReading, kind: str, rows: list[str]) -> None:
    reading.execute(f"{ENUM}; CREATE TYPE pair AS (x int, y e); CREATE DOMAIN k AS {kind}")
    reading.execute("CREATE TABLE a (id k PRIMARY KEY, v int DEFAULT 0)")
    for row in rows:
        reading.execute("INSERT INTO a VALUES (%s)", row)
    source = reading.source()
    end = travelled(source.latest(source.initial(), Limit(2, WIDE)))
    assert len(records_of(source, source.initial(), end)) == 2
    source.close()
    reading.execute("UPDATE a SET v = 1")
    found = [(operation, (after or {})["v"]) for operation, *_, after in rest(reading.source(), end)]
    assert found == [("snapshot", 1), ("update", 1), ("update", 1)]
