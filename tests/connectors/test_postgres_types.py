"""Values of a change, in a column of the type they came from: equal to what the database itself writes."""

from __future__ import annotations

import datetime
import uuid
from decimal import Decimal
from typing import Any

import pytest
from lab.postgres_lab import PostgresLab, change, create

from conduit_dagster.record import Record
from conduit_dagster.sdk import Rejected

MADE = """
    CREATE TYPE mood AS ENUM ('sad', 'so "so"', 'it''s, ok');
    CREATE DOMAIN age AS int CHECK (VALUE >= 0);
    CREATE DOMAIN tags AS text[];
    CREATE TYPE place AS (street text, number int, at point);
"""
LONG = "123456789012345678901234567890.123456789012345678901234567890"
KINDS: list[tuple[str, str, Any]] = [
    ("numeric", LONG, LONG),
    ("numeric", LONG, Decimal(LONG)),
    ("numeric(10, 2)", "-0.10", "-0.10"),
    ("numeric", "NaN", "NaN"),
    ("numeric", "NaN", Decimal("NaN")),
    ("numeric", "-Infinity", "-Infinity"),
    ("float8", "NaN", "NaN"),
    ("float8", "Infinity", "Infinity"),
    ("float8", "0.1", 0.1),
    ("float4", "1e-30", 1e-30),
    ("smallint", "-32768", -32768),
    ("boolean", "t", True),
    ("timestamptz", "2024-02-29 12:00:00.123456+02", "2024-02-29T12:00:00.123456+02:00"),
    ("timestamptz", "0044-03-15 12:00:00+00 BC", "0044-03-15T12:00:00+00:00 BC"),
    ("timestamptz", "infinity", "infinity"),
    ("timestamp", "2024-02-29 12:00:00.5", "2024-02-29T12:00:00.5"),
    ("timestamp", "2024-02-29 12:00:00.5", "2024-02-29T12:00:00.5Z"),
    ("date", "2024-02-29", "2024-02-29"),
    ("date", "2024-02-29", datetime.date(2024, 2, 29)),
    ("time", "23:59:59.999999", "23:59:59.999999"),
    ("timetz", "23:59:59.9+02", "23:59:59.9+02:00"),
    ("interval", "1 year 2 mons -3 days 04:05:06.789", "1 year 2 mons -3 days +04:05:06.789"),
    ("interval", "1 year 2 mons -3 days 04:05:06.789", "P1Y2M-3DT4H5M6.789S"),
    ("uuid", "a0eebc99-9c0b-4ef8-bb6d-6bb9bd380a11", "a0eebc99-9c0b-4ef8-bb6d-6bb9bd380a11"),
    ("uuid", "a0eebc99-9c0b-4ef8-bb6d-6bb9bd380a11", uuid.UUID("a0eebc99-9c0b-4ef8-bb6d-6bb9bd380a11")),
    ("inet", "192.168.0.1/24", "192.168.0.1/24"),
    ("cidr", "2001:4f8:3:ba::/64", "2001:4f8:3:ba::/64"),
    ("macaddr", "08:00:2b:01:02:03", "08:00:2b:01:02:03"),
    ("jsonb", '{"a": [1, null, "x\\"y"], "b": {"c": 1.5}}', {"a": [1, None, 'x"y'], "b": {"c": 1.5}}),
    ("jsonb", '{"n": 123456789012345678901234567890.5}', {"n": Decimal("123456789012345678901234567890.5")}),
    ("jsonb", '"text"', "text"),
    ("jsonb", "[1, [2]]", [1, [2]]),
    ("jsonb", "17", 17),
    ("json", '{"a":[1,null]}', {"a": [1, None]}),
    ("int[]", "{1,NULL,-3}", [1, None, -3]),
    ("int[]", "{}", []),
    ("int[]", "{1,2}", "{1,2}"),
    ("text[][]", '{{a,"b \\"c\\""},{"",NULL}}', [["a", 'b "c"'], ["", None]]),
    ("numeric[]", f"{{{LONG},NaN}}", [Decimal(LONG), "NaN"]),
    ("float8[]", "{0.1,Infinity}", [0.1, "Infinity"]),
    ("boolean[]", "{t,f,NULL}", [True, False, None]),
    ("bytea[]", '{"\\\\x00ff",NULL}', [b"\x00\xff", None]),
    ("uuid[]", "{a0eebc99-9c0b-4ef8-bb6d-6bb9bd380a11}", [uuid.UUID("a0eebc99-9c0b-4ef8-bb6d-6bb9bd380a11")]),
    ("date[]", "{2024-02-29}", [datetime.date(2024, 2, 29)]),
    ("timestamptz[]", '{"2024-02-29 12:00:00+00"}', ["2024-02-29T12:00:00Z"]),
    ("jsonb[]", '{"{\\"a\\": [1]}","\\"x\\"","[1, 2]",NULL}', [{"a": [1]}, "x", [1, 2], None]),
    ("mood[]", '{sad,"so \\"so\\""}', ["sad", 'so "so"']),
    ("bytea", "\\x00ff5c78", b"\x00\xff\\x"),
    ("mood", 'so "so"', 'so "so"'),
    ("mood", "it's, ok", "it's, ok"),
    ("age", "7", 7),
    ("tags", '{a,"b c"}', ["a", "b c"]),
    ("place", '("a ""b"", c",7,"(1,2)")', '("a ""b"", c",7,"(1,2)")'),
    ("place", "(,,)", "(,,)"),
    ("int4range", "[1,5)", "[1,5)"),
    ("tstzrange", '["2024-01-01 00:00:00+00",)', '["2024-01-01 00:00:00+00",)'),
    ("nummultirange", "{[1.5,2],(7,)}", "{[1.5,2],(7,)}"),
    ("bit(3)", "101", "101"),
    ("bit varying", "10110", "10110"),
    ("money", "-$1,234.56", "-$1,234.56"),
    ("money", "-$1,234.56", "-1234.56"),
    ("char(3)", "a", "a  "),
    ("xml", "<a>&lt;</a>", "<a>&lt;</a>"),
    ("point", "(1.5,-2)", "(1.5,-2)"),
    ("tsvector", "'a':1 'b''c':2", "'a':1 'b''c':2"),
]


@pytest.fixture
def made(lab: PostgresLab) -> PostgresLab:
    lab.execute(MADE)
    return lab


def test_every_kind_comes_back_as_it_was(made: PostgresLab) -> None:
    """After an insert, an insert by key and an update: as a row written by the database itself."""
    names = [f"v{place}" for place in range(len(KINDS))]
    columns = ", ".join(f"{name} {kind}" for name, (kind, _, _) in zip(names, KINDS, strict=True))
    made.execute(f"CREATE TABLE t (id int PRIMARY KEY, {columns})")
    fields = {name: value for name, (_, _, value) in zip(names, KINDS, strict=True)}
    nothing = dict.fromkeys(names)
    destination = made.destination()
    made.deliver(destination, [Record(1, {}, {"id": 1, **fields}), Record(4, {}, {"id": 4, **nothing})])
    made.deliver(destination, [change("update", 2, **fields), change("snapshot", 3, **nothing)])
    made.deliver(destination, [change("update", 3, **fields)])
    assert made.refused == []
    written = ", ".join(f"%s::text::{kind}" for kind, _, _ in KINDS)
    made.execute(f"INSERT INTO t VALUES (5, {written})", *(text for _, text, _ in KINDS))
    shown = ", ".join(f"{name}::text" for name in names)
    rows = made.execute(f"SELECT {shown} FROM t ORDER BY id")
    assert len(rows) == 5 and rows[3] == (None,) * len(KINDS)
    for found, own, kind in zip(zip(*rows[:3], strict=True), rows[4], KINDS, strict=True):
        assert found == (own, own, own), kind


@pytest.fixture
def hstore(lab: PostgresLab) -> PostgresLab:
    if not lab.execute("SELECT name FROM pg_available_extensions WHERE name = 'hstore'"):
        pytest.skip("the server has no extension hstore: install postgresql-contrib")
    lab.execute("CREATE EXTENSION hstore")
    return lab


@pytest.mark.parametrize(
    "value", [{"a": "1", 'b "c"': None, "d\\": 'x "y", z=>'}, {}, '"a"=>"1"'], ids=["pairs", "empty", "text"]
)
def test_an_hstore_is_a_document(hstore: PostgresLab, value: Any) -> None:
    hstore.execute("CREATE TABLE t (id int PRIMARY KEY, v hstore)")
    hstore.deliver(hstore.destination(), [Record(1, {}, {"id": 1, "v": value}), change("update", 2, v=value)])
    wanted = {"a": "1"} if isinstance(value, str) else value
    assert hstore.execute("SELECT id, hstore_to_json(v) FROM t ORDER BY id") == [(1, wanted), (2, wanted)]


def test_numbers_and_truths_of_an_hstore_are_their_text(hstore: PostgresLab) -> None:
    hstore.execute("CREATE TABLE t (v hstore)")
    hstore.deliver(
        hstore.destination(), [Record(1, {}, {"v": {"a": 1, "b": True, "c": [1]}}), Record(2, {}, {"v": [1]})]
    )
    assert hstore.execute("SELECT hstore_to_json(v) FROM t") == [({"a": "1", "b": "true", "c": "[1]"},)]
    assert [refusal.nack.code for refusal in hstore.refused] == ["postgres.type"]


@pytest.mark.parametrize("kind", ["date", "time", "timetz", "timestamp", "timestamptz", "interval", "day"])
def test_a_number_is_no_time(lab: PostgresLab, kind: str) -> None:
    """The server would take two minutes in milliseconds for noon, and microseconds of an interval for seconds."""
    lab.execute(f"CREATE DOMAIN day AS date; CREATE TABLE t (v {kind}, vs {kind.replace('day', 'date')}[])")
    values = [120_000, 20_240_102, 3_600.0, Decimal(120_000), True, {"a": 1}]
    records = [Record(place, {}, {"v": value}) for place, value in enumerate(values)]
    lab.deliver(lab.destination(), [*records, Record(9, {}, {"vs": [120_000]}), Record(10, {}, {"v": None})])
    assert {refusal.nack.code for refusal in lab.refused} == {"postgres.type"}
    assert len(lab.refused) == 7 and lab.rows() == [(None, None)]
    assert lab.refused[0].nack.message.startswith("a number does not fit the column v (")


@pytest.mark.parametrize(
    ("kind", "key", "other"),
    [
        ("uuid", "a0eebc99-9c0b-4ef8-bb6d-6bb9bd380a11", "b0eebc99-9c0b-4ef8-bb6d-6bb9bd380a11"),
        ("numeric", "1.10", Decimal("2.5")),
        ("bytea", b"\x00\xff", b"\xff"),
        ("timestamptz", "2024-02-29T12:00:00Z", "2024-02-29T13:00:00Z"),
        ("mood", "sad", "it's, ok"),
        ("int[]", [1, 2], [1, 2, 3]),
        ("jsonb", {"a": 1}, {"a": 2}),
    ],
)
def test_a_key_of_any_kind_finds_its_row(made: PostgresLab, kind: str, key: Any, other: Any) -> None:
    """For updates, another key and deletes, as a set and row by row."""
    made.execute(f"CREATE TABLE t (id {kind} PRIMARY KEY, v int)")
    destination = made.destination()

    def of(operation: str, number: Any, v: int | None = None, before: Any = None) -> Record:
        after = None if operation == "delete" else {"id": number, "v": v}
        return Record(1, {}, after, {"id": number}, before and {"id": before}, operation)

    made.deliver(destination, [of("create", key, 1)])
    made.deliver(destination, [of("update", key, 2)])
    made.deliver(destination, [of("update", other, 3, key)])
    made.deliver(destination, [of("update", key, 4, other), of("update", key, 5)])
    assert made.execute("SELECT v FROM t") == [(5,)]
    made.deliver(destination, [of("delete", key)])
    assert made.rows() == []


def test_a_domain_that_is_never_null_is_updated_in_part_and_deleted(lab: PostgresLab) -> None:
    """As a column and as a key, also beside a row that gets a new key."""
    lab.execute("CREATE DOMAIN name AS varchar(5) NOT NULL CHECK (value <> '')")
    lab.execute("CREATE TABLE t (id public.name PRIMARY KEY, n public.name, v int)")

    def of(operation: str, key: str, before: str | None = None, **fields: Any) -> Record:
        after = None if operation == "delete" else {"id": key, **fields}
        lacks = {"postgres.unchanged_toast": "n"} if operation == "update" and "n" not in fields else {}
        return Record(1, lacks, after, {"id": key}, before and {"id": before}, operation)

    destination = lab.destination()
    lab.deliver(destination, [of("create", key, n="x", v=0) for key in "abcd"])
    lab.deliver(destination, [of("delete", "a"), of("update", "b", n="y", v=1), of("update", "c", v=2)])
    lab.deliver(destination, [of("update", "e", "d", n="z", v=3), of("update", "b", v=4)])
    assert lab.rows() == [("b", "y", 4), ("c", "x", 2), ("e", "z", 3)]
    for value in ("", "longer"):
        with pytest.raises(Rejected) as refused:
            lab.deliver(destination, [of("update", "b", n="q", v=5), of("update", "c", n=value, v=6)])
        assert refused.value.place == 1


@pytest.mark.parametrize(
    ("kind", "value", "code"),
    [
        ("int[]", [2**31], "out_of_range"),
        ("int[]", [True], "type"),
        ("int[]", [{}], "type"),
        ("bytea[]", ["x", {}], "type"),
    ],
)
def test_an_element_that_does_not_fit_is_told_at_once(lab: PostgresLab, kind: str, value: Any, code: str) -> None:
    lab.execute(f"CREATE TABLE t (v {kind})")
    lab.stage(lab.destination(), [Record(1, {}, {"v": value})])
    assert [refusal.nack.code for refusal in lab.refused] == [f"postgres.{code}"]


@pytest.mark.parametrize(
    ("kind", "kept", "lost"),
    [
        ("float8", [2**53, 1152921504606847000, 10**22, 0.1], [2**53 + 1, -(10**18) - 1, 10**400]),
        ("float4", [2**24, 123456790, 0.1], [2**24 + 1]),
        ("float8[]", [[2**53, None]], [[1, 2**53 + 1]]),
    ],
)
def test_a_whole_number_loses_no_digits_in_a_column_of_floats(
    lab: PostgresLab, kind: str, kept: list[Any], lost: list[Any]
) -> None:
    """It may be an id."""
    lab.execute(f"CREATE TABLE t (v {kind})")
    lab.deliver(lab.destination(), [Record(1, {}, {"v": value}) for value in [*kept, *lost]])
    assert [refusal.place for refusal in lab.refused] == list(range(len(kept), len(kept) + len(lost)))
    assert {refusal.nack.code for refusal in lab.refused} == {"postgres.out_of_range"}
    assert len(lab.rows()) == len(kept)


@pytest.mark.parametrize(("tasks", "block"), [(1, 3), (1, 1), (3, 1)])
def test_a_new_table_holds_whole_numbers_beside_fractions(lab: PostgresLab, tasks: int, block: int) -> None:
    """Also where they come in other blocks, or by other tasks; without fractions, they are a bigint."""
    large = 2**53 + 1
    records = [Record(place, {}, {"id": large, "v": v}) for place, v in enumerate((0.5, large, 2))]
    destination, size = lab.destination(create_table="auto"), len(records) // tasks
    destination.publish(lab.stage(destination, *(records[i : i + size] for i in range(0, 3, size)), block=block))
    assert lab.execute("SELECT v::text FROM t ORDER BY v") == [("0.5",), ("2",), (str(large),)]
    assert lab.execute("SELECT DISTINCT pg_typeof(id)::text, pg_typeof(v)::text FROM t") == [("bigint", "numeric")]


def test_settings_of_the_database_change_no_value(lab: PostgresLab) -> None:
    database = lab.execute("SELECT current_database()")[0][0]
    lab.execute("CREATE TABLE t (id int PRIMARY KEY, names text[], part xml)")
    for setting in ("array_nulls = off", "xmloption = document", "lc_monetary = 'POSIX'"):
        lab.execute(f'ALTER DATABASE "{database}" SET {setting}')
    try:
        destination = lab.destination()
        lab.deliver(destination, [create(1, names=["a", None], part="some <b>text</b>")])
        assert lab.rows() == [(1, ["a", None], "some <b>text</b>")]
        with destination._session.connection() as connection:
            assert connection.execute("SHOW lc_monetary").fetchone() == ("C",)
    finally:
        lab.execute(f'ALTER DATABASE "{database}" RESET ALL')
