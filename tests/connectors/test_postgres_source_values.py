"""Values of every type, as copied rows and as changes: equal, exact, and accepted back by a column."""

from __future__ import annotations

import sys
from contextlib import closing
from pathlib import Path
from typing import Any

import msgspec
import psycopg
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from lab.postgres_reading import PostgresReading, drained
from lab.postgres_server import PostgresServer
from lab.postgres_tables import drop_slots

from conduit_dagster.connectors.postgres.connection import connect, parameters
from conduit_dagster.connectors.postgres.copied_rows import unescaped
from conduit_dagster.connectors.postgres.pgoutput import ReplicationStream
from conduit_dagster.connectors.postgres.row_values import decoder_of
from conduit_dagster.connectors.postgres.settings import DatabaseServer
from conduit_dagster.connectors.postgres.source_errors import SourceErrors
from conduit_dagster.connectors.postgres.source_settings import PostgresSourceSettings
from conduit_dagster.recovery.errors import FatalError

CASES: list[tuple[str, str, Any]] = [
    ("smallint", "-32768", -32768),
    ("bigint", "9223372036854775807", 2**63 - 1),
    ("oid", "4294967295", 2**32 - 1),
    ("boolean", "true", True),
    ("real", "1.5", 1.5),
    ("float8", "0.1", 0.1),
    ("float8", "'NaN'", "NaN"),
    ("float8", "'-Infinity'", "-Infinity"),
    ("numeric", "12345678901234567890.123456789", "12345678901234567890.123456789"),
    ("numeric(10,2)", "1.5", "1.50"),
    ("numeric", "'NaN'", "NaN"),
    ("money", "'12.34'", "$12.34"),
    ("text", "'é 😀'", "é 😀"),
    ("char(4)", "'ab'", "ab  "),
    ("bytea", r"'\x00ff'", r"\x00ff"),
    ("date", "'2024-02-29'", "2024-02-29"),
    ("time", "'12:34:56.789'", "12:34:56.789"),
    ("timetz", "'12:34:56+02'", "12:34:56+02"),
    ("timestamp", "'2024-02-29 12:34:56.789'", "2024-02-29T12:34:56.789"),
    ("timestamptz", "'2024-02-29 12:34:56+02'", "2024-02-29T10:34:56Z"),
    ("timestamptz", "'infinity'", "infinity"),
    ("timestamp", "'0044-03-15 12:00:00 BC'", "0044-03-15 12:00:00 BC"),
    ("interval", "'1 day 2 hours'", "P1DT2H"),
    ("uuid", "'A0EEBC99-9C0B-4EF8-BB6D-6BB9BD380A11'", "a0eebc99-9c0b-4ef8-bb6d-6bb9bd380a11"),
    ("inet", "'10.0.0.1/8'", "10.0.0.1/8"),
    ("macaddr", "'08:00:2b:01:02:03'", "08:00:2b:01:02:03"),
    ("json", """'{"b": 1, "a": [1.5, null]}'""", {"b": 1, "a": [1.5, None]}),
    ("jsonb", "'\"x\"'", "x"),
    ("jsonb", "'1e400'", 10**400),
    ("int[]", "'{1,NULL,3}'", [1, None, 3]),
    ("text[]", """'{"a,b","c\\"d",NULL,"NULL",""}'""", ["a,b", 'c"d', None, "NULL", ""]),
    ("text[][]", "'{{a,b},{c,d}}'", [["a", "b"], ["c", "d"]]),
    ("timestamptz[]", "'{2024-02-29 12:00:00+00}'", ["2024-02-29T12:00:00Z"]),
    ("jsonb[]", """array['{"a": 1}'::jsonb]""", [{"a": 1}]),
    ("int4range", "'[1,5)'", "[1,5)"),
    ("int4range[]", "array['[1,5)'::int4range]", ["[1,5)"]),
    ("bit(3)", "B'101'", "101"),
    ("point", "'(1,2)'", "(1,2)"),
    ("box[]", "'{(1,1),(0,0)}'", "{(1,1),(0,0)}"),
    # separated by ";", as PostGIS separates by ":"
    ("corner[]", "'{(1,1),(0,0);(2,2),(1,1)}'", "{(1,1),(0,0);(2,2),(1,1)}"),
    ("tsvector", "'a:1 b:2'", "'a':1 'b':2"),
    ("mood", "'ok'", "ok"),
    ("mood[]", "'{ok,sad}'", ["ok", "sad"]),
    ("amount", "5", 5),
    ("tags", "'{a,b}'", ["a", "b"]),
    ("pair", "ROW(1, 'a b')", '(1,"a b")'),
    ("floatrange", "'[1.5,2]'", "[1.5,2]"),
]
TYPES = """
    CREATE TYPE mood AS ENUM ('ok', 'sad'); CREATE DOMAIN amount AS int CHECK (VALUE > 0);
    CREATE DOMAIN tags AS text[]; CREATE DOMAIN corner AS box; CREATE TYPE pair AS (a int, b text);
    CREATE TYPE floatrange AS RANGE (subtype = float8);
"""


def has_no(reading: PostgresReading, extension: str) -> bool:
    query = "SELECT count(*) FROM pg_available_extensions WHERE name = %s"
    return reading.execute(query, extension) == [(0,)]


def test_every_type_comes_as_documented(reading: PostgresReading) -> None:
    reading.execute(TYPES)
    columns = ", ".join(f"c{i} {kind}" for i, (kind, _, _) in enumerate(CASES))
    reading.execute(f"CREATE TABLE a (id int PRIMARY KEY, {columns})")
    values = ", ".join(f"({literal})::{kind}" for kind, literal, _ in CASES)
    reading.execute(f"INSERT INTO a VALUES (1, {values}); INSERT INTO a (id) VALUES (2)")
    source = reading.source()
    (copied, empty), position = drained(source)
    reading.execute("UPDATE a SET id = id + 10")
    (changed, nulls), _ = drained(source, position)
    for record, number in ((copied, 1), (changed, 11)):
        after: Any = record.after
        found = {f"{kind} {literal}": after[f"c{i}"] for i, (kind, literal, _) in enumerate(CASES)}
        assert found == {f"{kind} {literal}": value for kind, literal, value in CASES}
        assert after["id"] == number
    for record in (empty, nulls):
        assert {value for name, value in (record.after or {}).items() if name != "id"} == {None}  # type: ignore[union-attr]
    # and each is text that the column accepts again
    for i, (kind, _, value) in enumerate(CASES):
        if isinstance(value, str) and kind != "jsonb":
            same = f"SELECT %s::{kind}::text = c{i}::text FROM a WHERE id = 11"
            assert reading.execute(same, value) == [(True,)], kind


def test_xml_is_text(reading: PostgresReading) -> None:
    reading.execute("CREATE TABLE a (id int PRIMARY KEY, x xml)")
    try:
        reading.execute("INSERT INTO a VALUES (1, '<a/>')")
    except psycopg.errors.FeatureNotSupported:
        pytest.skip("this server was built without XML")
    assert [record.after for record in drained(reading.source())[0]] == [{"id": 1, "x": "<a/>"}]


def test_hstore_is_a_document(reading: PostgresReading) -> None:
    if has_no(reading, "hstore"):
        pytest.skip("this server has no hstore")
    reading.execute("CREATE EXTENSION hstore; CREATE TABLE a (id int PRIMARY KEY, h hstore, m hstore[])")
    reading.execute("""INSERT INTO a VALUES (1, 'a=>1, "b c"=>NULL, "q"=>"x\\"y"', array['k=>v'::hstore])""")
    (record,), _ = drained(reading.source())
    assert record.after == {"id": 1, "h": {"a": "1", "b c": None, "q": 'x"y'}, "m": [{"k": "v"}]}


def test_generated_columns_are_left_out(reading: PostgresReading) -> None:
    """As in the stream of changes: a destination would not accept them."""
    reading.execute("CREATE TABLE a (id int PRIMARY KEY, d int GENERATED ALWAYS AS (id * 2) STORED)")
    reading.execute("INSERT INTO a VALUES (1)")
    source = reading.source()
    copied, position = drained(source)
    reading.execute("INSERT INTO a VALUES (2)")
    assert [one.after for one in copied + drained(source, position)[0]] == [{"id": 1}, {"id": 2}]


@settings(max_examples=300)
@given(st.text(st.sampled_from("a\\\t\n\r\b\f\vN.é"), max_size=8))
def test_escapes_of_copy_come_off(text: str) -> None:
    marks = {"\b": "\\b", "\f": "\\f", "\n": "\\n", "\r": "\\r", "\t": "\\t", "\v": "\\v", "\\": "\\\\"}
    assert unescaped("".join(marks.get(one, one) for one in text).encode()) == text.encode()


@pytest.fixture(scope="module")
def connection(database: str) -> Any:
    with psycopg.connect(database, autocommit=True) as made:
        yield made


def _nested(shape: list[int]) -> st.SearchStrategy[Any]:
    """Lists of lists of texts: in each dimension all have the same length, as PostgreSQL requires."""
    text = st.one_of(st.none(), st.text(st.characters(codec="utf-8", exclude_characters="\0")))
    made: st.SearchStrategy[Any] = text
    for size in shape:
        made = st.lists(made, min_size=size, max_size=size)
    return made


@settings(max_examples=150, deadline=None)
@given(value=st.lists(st.integers(1, 3), min_size=1, max_size=3).flatmap(_nested))
def test_any_array_of_texts_comes_back(connection: Any, value: Any) -> None:
    text = connection.execute("SELECT %s::text[]::text", (value,)).fetchone()[0]
    assert decoder_of(1009, lambda oid: None)(text.encode()) == value


def test_a_document_that_is_nested_too_deeply_is_text(reading: PostgresReading) -> None:
    """Copied and as a change; the server takes any depth, and one such row held up the pipeline for good.

    Python 3.14 reads all that the server takes.
    """
    deep = "[" * 3_000 + "]" * 3_000
    value = deep if sys.version_info < (3, 14) else msgspec.json.decode(deep)
    reading.execute("CREATE TABLE d (id int PRIMARY KEY, j jsonb, k json[])")
    reading.execute("INSERT INTO d VALUES (1, %s::jsonb, ARRAY[%s::json])", deep, deep)
    source = reading.source()
    copied, position = drained(source)
    reading.execute("INSERT INTO d SELECT 2, j, k FROM d")
    changed, _ = drained(source, position)
    for record in (*copied, *changed):
        assert isinstance(record.after, dict)
        assert (record.after["j"], record.after["k"]) == (value, [value])


def test_money_does_not_depend_on_the_server_s_language(reading: PostgresReading) -> None:
    """Else a German server would write 12,34, which another one takes for 1234."""
    database = reading.execute("SELECT current_database()")[0][0]
    reading.execute(f"ALTER DATABASE \"{database}\" SET lc_monetary = 'POSIX'")
    settings = PostgresSourceSettings.model_validate({"url": reading.url, "tables": "*"})
    with closing(connect(settings, SourceErrors(DatabaseServer.of({}), ""), "test")) as connection:
        assert connection.execute("SHOW lc_monetary").fetchone() == ("C",)
    with closing(ReplicationStream(parameters(settings, "test"))) as stream:
        with pytest.raises(psycopg.errors.UndefinedObject):
            stream.start("none", "none", 0)
        assert stream._execute("SHOW lc_monetary").get_value(0, 0) == b"C"


def test_arrays_of_a_domain_over_an_array_are_text(reading: PostgresReading) -> None:
    """A list of lists would be an array of two dimensions, which the same type does not take."""
    reading.execute("CREATE DOMAIN k AS int[]; CREATE TABLE t (id int PRIMARY KEY, v k[])")
    source = reading.source()
    _, position = drained(source)
    reading.execute("""INSERT INTO t VALUES (1, '{"{1,2}",NULL}')""")
    for found in (drained(source, position)[0], drained(reading.source(snapshotMode="initial_only"))[0]):
        assert [record.after for record in found] == [{"id": 1, "v": '{"{1,2}",NULL}'}]


def test_a_text_that_the_server_can_not_send_is_named(postgres_server: PostgresServer, tmp_path: Path) -> None:
    """Copied and as a change: it was tried again without an end, and nothing said which table it is in."""
    with psycopg.connect(postgres_server.url(), autocommit=True) as admin:
        admin.execute("DROP DATABASE IF EXISTS any_bytes")
        admin.execute("CREATE DATABASE any_bytes ENCODING 'SQL_ASCII' TEMPLATE template0 LOCALE 'C'")
    with closing(PostgresReading(postgres_server.url("any_bytes"), tmp_path)) as reading:
        reading.execute("CREATE TABLE t (id int PRIMARY KEY, v text)")
        row = "INSERT INTO t VALUES (1, convert_from('\\xe4', 'SQL_ASCII'))"
        source = reading.source()
        _, position = drained(source)
        reading.execute(row)
        with pytest.raises(FatalError, match="0xe4") as changed:
            drained(source, position)
        with pytest.raises(FatalError, match=r"0xe4 \(public\.t\)") as copied:
            drained(reading.source(snapshotMode="initial_only"))
        assert changed.value.code == copied.value.code == "postgres.unreadable"
        # a change stays as it was made, whatever the row is now
        assert "pg_drop_replication_slot" in str(changed.value.fix) and "run again" in str(copied.value.fix)


def test_a_row_for_which_the_filter_of_the_publication_fails_names_the_filter(reading: PostgresReading) -> None:
    """The fix spoke of the encoding and the size of a row."""
    if int(reading.execute("SHOW server_version_num")[0][0]) < 150_000:
        pytest.skip("publications have filters from version 15 on")
    reading.execute("CREATE TABLE t (id int PRIMARY KEY, v text); ALTER TABLE t REPLICA IDENTITY FULL")
    reading.execute(f"CREATE PUBLICATION {reading.name} FOR TABLE t WHERE (10 / length(v) > 1)")
    source = reading.source()
    _, position = drained(source)
    reading.execute("INSERT INTO t VALUES (1, '')")
    with pytest.raises(FatalError, match="zero") as changed:
        drained(source, position)
    drop_slots(reading.url, reading.name)
    with pytest.raises(FatalError, match="zero") as copied:
        drained(reading.source())
    assert changed.value.code == copied.value.code == "postgres.unreadable"
    fixes = [str(changed.value.fix), str(copied.value.fix)]
    assert all("row filter" in fix and "encoding" not in fix for fix in fixes)
    assert ["pg_drop_replication_slot" in fix for fix in fixes] == [True, False]


@pytest.mark.slow
def test_a_row_that_is_too_large_as_text_is_named(reading: PostgresReading) -> None:
    """The server stores it, and fails with an internal error when it is to send it: both were tried without an end."""
    reading.execute("CREATE TABLE t (id int PRIMARY KEY, v bytea)")
    source = reading.source()
    _, position = drained(source)
    reading.execute("INSERT INTO t VALUES (1, convert_to(repeat('x', 540000000), 'UTF8'))")
    with pytest.raises(FatalError, match="memory alloc request size") as changed:
        drained(source, position)
    with pytest.raises(FatalError, match=r"memory alloc request size .*public\.t") as copied:
        drained(reading.source(snapshotMode="initial_only"))
    assert changed.value.code == copied.value.code == "postgres.unreadable"
    assert "1 GB" in str(changed.value.fix) and "1 GB" in str(copied.value.fix)
