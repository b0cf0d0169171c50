"""The postgres destination: rows equal the documents, exactly once, whatever is repeated."""

from __future__ import annotations

import datetime
import io
import json
import re
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from lab.postgres_lab import PostgresLab, at_half, change, child, create

from conduit_dagster.builtin_plugins import DESTINATIONS
from conduit_dagster.connectors import kept_hashes
from conduit_dagster.connectors.kept_hashes import KEPT_STEPS
from conduit_dagster.connectors.postgres.destination import PostgresDestination
from conduit_dagster.record import Record
from conduit_dagster.recovery.errors import FatalError
from conduit_dagster.sdk import AlreadyClaimed


def codes(lab: PostgresLab) -> list[tuple[int, str]]:
    return [(refusal.place, refusal.nack.code) for refusal in lab.refused]


def test_it_is_known_by_its_name() -> None:
    found = DESTINATIONS.find("builtin:postgres", {})
    assert found is not None and found.name == "postgres" and found.divisible


_SEEN = """
    CREATE TABLE t (id int PRIMARY KEY, seen text);
    CREATE FUNCTION note() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN
        NEW.seen := concat_ws(' ', current_setting('synchronous_commit'), current_setting('lock_timeout'));
        RETURN NEW; END $$;
    CREATE TRIGGER note BEFORE INSERT ON t FOR EACH ROW EXECUTE FUNCTION note()
"""


@pytest.mark.parametrize("operation", ["create", "update"])
def test_each_transaction_has_its_settings(lab: PostgresLab, operation: str) -> None:
    """A pooler, such as PgBouncer with ``pool_mode = transaction``, takes them to sessions that were never prepared."""
    lab.execute(_SEEN)
    destination = lab.destination(url=f"{lab.url}?options=-c%20synchronous_commit%3Doff", lock_timeout="7s")
    destination.check()
    with destination._session.connection() as connection:
        connection.execute("RESET ALL")
    lab.deliver(destination, [change(operation, 1, seen="")])
    assert lab.rows() == [(1, "on 7s")]


# -- rows ---------------------------------------------------------------------------------------------------------


def test_values_become_what_the_columns_hold(lab: PostgresLab) -> None:
    columns = "id bigint, s text, n numeric, f float8, b boolean, j jsonb, a int[], x bytea, d date, t timestamptz"
    lab.execute(f"CREATE TABLE t ({columns})")
    document = {
        "id": 1,
        "s": "ünïcode 😀",
        "n": 10**40,
        "f": 1.5e300,
        "b": True,
        "j": {"a": [1, None, "x"], "big": 10**30},
        "a": [1, None, 3],
        "x": b"\x00\xff",
        "d": "2024-02-29",
        "t": "2024-02-29T12:00:00Z",
    }
    lab.deliver(lab.destination(), [Record(1, {}, document), Record(2, {}, {**dict.fromkeys(document), "id": 2})])
    noon = datetime.datetime(2024, 2, 29, 12, tzinfo=datetime.UTC)
    assert lab.rows() == [
        (1, "ünïcode 😀", 10**40, 1.5e300, True, document["j"], [1, None, 3], b"\x00\xff", noon.date(), noon),
        (2, *[None] * 9),
    ]


@pytest.mark.parametrize(
    "text", ["", "a\tb", "a\nb\r", "back\\slash", "\\N", "\\.", '"quoted"', "it's", "\x01\x1f\x7f", " x ", "é\u2028"]
)
def test_any_text_comes_back_as_it_was(lab: PostgresLab, text: str) -> None:
    """In a text column, in an array and inside a document; alone in its row as well."""
    lab.execute("CREATE TABLE t (s text, a text[], j jsonb); CREATE TABLE lone (s text)")
    lab.deliver(lab.destination(), [Record(1, {}, {"s": text, "a": [text, text], "j": {text: text}})])
    assert lab.rows() == [(text, [text, text], {text: text})]
    lab.deliver(lab.destination(table="lone"), [Record(1, {}, {"s": text}), Record(2, {}, {"s": text})])
    assert lab.rows("lone") == [(text,), (text,)]


@pytest.mark.parametrize(
    ("value", "column", "stored"),
    [
        (5, "text", "5"),
        (True, "text", "true"),
        ({"a": 1}, "text", '{"a":1}'),
        ([1, 2], "jsonb", [1, 2]),
        ("plain", "jsonb", "plain"),
        (5, "jsonb", 5),
        (2.0, "int", 2),
        (7, "float8", 7.0),
        ("12", "int", 12),
        ([[1, 2], [3, 4]], "int[]", [[1, 2], [3, 4]]),
        (["a", 'b"\\'], "text[]", ["a", 'b"\\']),
        ([], "text[]", []),
        (2**63 - 1, "bigint", 2**63 - 1),
    ],
)
def test_values_fit_other_types_too(lab: PostgresLab, value: Any, column: str, stored: Any) -> None:
    lab.execute(f"CREATE TABLE t (v {column})")
    lab.deliver(lab.destination(), [Record(1, {}, {"v": value})])
    assert lab.rows() == [(stored,)]


@pytest.mark.parametrize(
    ("value", "column", "code"),
    [
        ("a\0b", "text", "postgres.nul"),
        ({"a": "\0"}, "jsonb", "postgres.nul"),
        ("\ud800", "text", "format.invalid"),
        (2**63, "bigint", "postgres.out_of_range"),
        (-(2**31) - 1, "int", "postgres.out_of_range"),
        (1.5, "int", "postgres.type"),
        (True, "int", "postgres.type"),
        ({"a": 1}, "int", "postgres.type"),
        ({"a": 1}, "int[]", "postgres.type"),
        (None, "text NOT NULL", "postgres.not_null"),
        (object(), "text", "postgres.type"),
    ],
)
def test_what_a_column_cannot_hold_is_that_record_s_nack(lab: PostgresLab, value: Any, column: str, code: str) -> None:
    """The others of its block are written."""
    lab.execute(f"CREATE TABLE t (id int, v {column})")
    good = {"jsonb": {}, "int[]": []}.get(column, 1)
    values = [good, value, good]
    lab.deliver(lab.destination(), [create(i, v=v) for i, v in enumerate(values)])
    assert codes(lab) == [(1, code)]
    assert [row[0] for row in lab.rows()] == [0, 2]


def test_a_nul_that_is_only_written_out_is_no_nul(lab: PostgresLab) -> None:
    r"""The six characters \u0000 in a text are just text."""
    lab.execute("CREATE TABLE t (j jsonb)")
    lab.deliver(lab.destination(), [Record(1, {}, {"j": {"a": "\\u0000"}})])
    assert (lab.refused, lab.rows()) == ([], [({"a": "\\u0000"},)])


def test_a_field_that_is_not_there_leaves_the_default(lab: PostgresLab) -> None:
    lab.execute("CREATE TABLE t (id int, n int DEFAULT 7, s text, g int GENERATED ALWAYS AS (id * 2) STORED)")
    lab.deliver(lab.destination(), [create(1), create(2, n=1), create(3, s="x"), create(4, n=None), create(5, g=1)])
    assert lab.rows() == [(1, 7, None, 2), (2, 1, None, 4), (3, 7, "x", 6), (4, None, None, 8)]
    assert codes(lab) == [(4, "postgres.unmapped")]
    assert "g (a generated one)" in lab.refused[0].nack.message


def test_names_need_no_care(lab: PostgresLab) -> None:
    lab.execute('CREATE SCHEMA "Odd one"; CREATE TABLE "Odd one"."we""ird" ("select" int, "a b" text, "%s" text)')
    destination = lab.destination(table='"Odd one".we"ird')
    destination.check()
    record = Record(1, {}, {"select": 1, "a b": "x", "%s": "y"}, {"select": 1})
    lab.deliver(destination, [record, Record(2, {}, None, {"select": 2}, operation="delete")])
    assert lab.rows('Odd one/we"ird') == [(1, "x", "y")]


def test_parts_and_blocks_are_one_copy_in_order(lab: PostgresLab) -> None:
    lab.execute("CREATE TABLE t (at bigserial, id int)")
    lab.deliver(lab.destination(), [create(i) for i in range(2_500)], [create(i) for i in range(2_500, 3_000)])
    assert [row[1] for row in lab.rows()] == list(range(3_000))


# -- settings -----------------------------------------------------------------------------------------------------


def test_mapping_and_unmapped_fields(lab: PostgresLab) -> None:
    lab.execute("CREATE TABLE t (id int, label text, unmapped jsonb)")
    records = [create(1, name="a"), create(2, name="b", extra=[1], other=None)]
    lab.deliver(lab.destination(mapping="name:label"), records)
    assert codes(lab) == [(1, "postgres.unmapped")]
    assert "extra, other" in lab.refused[0].nack.message
    lab.deliver(lab.destination(mapping="name:label", unmapped="ignore"), records)
    lab.deliver(lab.destination(mapping="name:label", unmapped="json"), records)
    more = {"extra": [1], "other": None}
    assert sorted(lab.rows(), key=str) == sorted(
        [(1, "a", None), (1, "a", None), (2, "b", None), (1, "a", None), (2, "b", more)], key=str
    )


def test_a_column_added_meanwhile_is_found(lab: PostgresLab) -> None:
    """A process's cached knowledge of a table never nacks a record that fits the table now."""
    lab.execute("CREATE TABLE t (id int)")
    lab.deliver(lab.destination(), [create(1)])
    lab.execute("ALTER TABLE t ADD v text")
    lab.deliver(lab.destination(), [create(2, v="x")])
    assert (lab.refused, lab.rows()) == ([], [(1, None), (2, "x")])


def test_a_column_changed_meanwhile_refuses_nobody(lab: PostgresLab) -> None:
    """A value is judged by the column's current type, not that of a minute ago."""
    lab.execute("CREATE TABLE t (id int, v int)")
    lab.deliver(lab.destination(), [create(1, v=1)])
    lab.execute("ALTER TABLE t ALTER v TYPE text")
    lab.deliver(lab.destination(), [create(2, v=True), create(3, v={"a": 1}), create(4, v="\0")])
    assert (codes(lab), lab.rows()) == ([(2, "postgres.nul")], [(1, "1"), (2, "true"), (3, '{"a":1}')])


def test_raw_payloads(lab: PostgresLab) -> None:
    """JSON objects as in Conduit, or bytes into a column of their own."""
    lab.execute("CREATE TABLE t (id int, v text); CREATE TABLE raw (b bytea); CREATE TABLE lines (b text)")
    lab.deliver(lab.destination(), [Record(1, {}, b'{"id": 1, "v": "x"}'), Record(2, {}, b"[1]"), Record(3, {})])
    assert (lab.rows(), codes(lab)) == ([(1, "x")], [(1, "postgres.raw_payload"), (2, "postgres.no_payload")])
    lab.deliver(lab.destination(table="raw", raw_column="b"), [Record(1, {}, b"\x00\\\n")])
    assert lab.rows("raw") == [(b"\x00\\\n",)]
    lab.refused.clear()
    lab.deliver(lab.destination(table="lines", raw_column="b"), [Record(1, {}, b"a\\\n"), Record(2, {}, b"\xff")])
    assert (lab.rows("lines"), codes(lab)) == ([("a\\\n",)], [(1, "postgres.encoding")])


def test_a_table_per_record(lab: PostgresLab) -> None:
    """Conduit's default: the collection names the table. All of them are filled in one transaction."""
    lab.execute("CREATE TABLE a (id int); CREATE SCHEMA s; CREATE TABLE s.b (id int)")
    destination = lab.destination(table='{{ index .Metadata "opencdc.collection" }}')
    names = ["a", "s.b", "", "a", "s.b"]
    records = [Record(i, {"opencdc.collection": name}, {"id": i}) for i, name in enumerate(names)]
    delivery = lab.stage(destination, records)
    assert codes(lab) == [(2, "postgres.table_name")]
    with at_half(lambda: pytest.fail("half")), pytest.raises(pytest.fail.Exception):
        destination.publish(delivery)
    assert (lab.rows("a"), lab.rows("s/b")) == ([], [])
    destination.publish(delivery)
    assert (lab.rows("a"), lab.rows("s/b")) == ([(0,), (3,)], [(1,), (4,)])
    for place in range(4):
        destination.publish(child(delivery, place))
    assert (lab.rows("a"), lab.rows("s/b")) == ([(0,), (0,), (3,), (3,)], [(1,), (1,), (4,), (4,)])


def test_a_missing_table_is_created_from_what_comes_first(lab: PostgresLab) -> None:
    destination = lab.destination(table="s.made", create_table="auto", key="id")
    with pytest.raises(FatalError, match="schema"):
        destination.check()
    lab.execute("CREATE SCHEMA s")
    destination.check()
    tasks = [[create(1, f=1, s="x", j={"a": 1}, b=True, m=1)], [create(2, f=1.5, big=10**30, n=None, m="y")]]
    lab.deliver(destination, *tasks)
    types = "SELECT column_name, data_type FROM information_schema.columns WHERE table_name = 'made'"
    assert dict(lab.execute(types)) == {
        "id": "bigint",
        "f": "double precision",
        "s": "text",
        "j": "jsonb",
        "b": "boolean",
        "big": "numeric",
        "n": "text",
        "m": "text",
    }
    lab.deliver(destination, [change("update", 2, s="now"), create(3, f=0)])
    assert [(row[0], row[2]) for row in lab.rows("s/made")] == [(1, "x"), (2, "now"), (3, None)]


def test_a_table_that_was_made_meanwhile_otherwise_names_the_record(lab: PostgresLab) -> None:
    from conduit_dagster.sdk import Rejected

    destination = lab.destination(create_table="auto")
    delivery = lab.stage(destination, [create(1)], [create(2, v=1)])
    lab.execute("CREATE TABLE t (id int)")
    with pytest.raises(Rejected) as error:
        destination.publish(delivery)
    assert (error.value.place, error.value.nack.code, lab.rows()) == (1, "postgres.unmapped", [])


# -- once ---------------------------------------------------------------------------------------------------------


def test_a_repeat_writes_nothing(lab: PostgresLab) -> None:
    """By this destination, or by another process that knows nothing but the delivery."""
    lab.execute("CREATE TABLE t (id int)")
    destination = lab.destination()
    delivery = lab.stage(destination, [create(1), create(2)])
    assert not destination.holds(delivery)
    for one in (destination, destination, lab.destination()):
        one.publish(delivery)
        assert one.holds(delivery)
    assert lab.rows() == [(1,), (2,)]


@pytest.mark.parametrize("state", ["split", "nacked"])
def test_a_claim_and_a_publish_exclude_each_other(lab: PostgresLab, state: Any) -> None:
    lab.execute("CREATE TABLE t (id int)")
    destination = lab.destination()
    claimed, delivered = (lab.stage(destination, [create(i)]) for i in (1, 2))
    assert destination.claim(claimed, state) == state
    assert destination.claim(claimed, "split") == state
    with pytest.raises(AlreadyClaimed) as error:
        destination.publish(claimed)
    assert error.value.state == state
    destination.publish(delivered)
    assert destination.claim(delivered, state) == "delivered"
    assert (lab.rows(), destination.holds(claimed)) == ([(2,)], False)


def test_children_are_ranges_of_the_records(lab: PostgresLab) -> None:
    """In order, out of order, across part borders, and each once."""
    lab.execute("CREATE TABLE t (id int, v text)")
    destination = lab.destination()
    first = [create(i) if i % 3 else create(i, v="é\n") for i in range(7)]
    delivery = lab.stage(destination, first, [create(i) for i in range(7, 10)])
    for skip, take in ((0, 1), (1, 1), (5, 4), (2, 3), (9, 1), (1, 1), (5, 4)):
        destination.publish(child(delivery, skip, take))
        assert destination.holds(child(delivery, skip, take))
    assert [row[0] for row in lab.rows()] == list(range(10))
    assert not destination.holds(delivery)


def test_many_children_are_not_searched_from_the_beginning(lab: PostgresLab) -> None:
    """The staged file is read about once, however many children there are."""
    lab.execute("CREATE TABLE t (id int, v text)")
    destination = lab.destination()
    delivery = lab.stage(destination, [create(i, v="x" * 10_000) for i in range(300)])
    destination.publish(child(delivery, 0))
    read_before = _bytes_read()
    for skip in range(1, 300):
        destination.publish(child(delivery, skip))
    # each is found by one buffer's read and sent with another; Python 3.14 has buffers of 128 KiB
    assert _bytes_read() - read_before < 300 * (10_000 * 10 + 2 * io.DEFAULT_BUFFER_SIZE)
    assert len(lab.rows()) == 300


def _bytes_read() -> int:
    lines = Path("/proc/self/io").read_text().splitlines()
    return int(lines[0].split()[1])


def test_old_hashes_are_dropped_and_then_refused(lab: PostgresLab, monkeypatch: pytest.MonkeyPatch) -> None:
    """So the table stays small, and a forgotten delivery is never mistaken for a new one."""
    from dataclasses import replace

    monkeypatch.setattr(kept_hashes, "_EVERY", 1)
    lab.execute("CREATE TABLE t (id int)")
    destination = lab.destination()
    old = lab.deliver(destination, [create(1)])
    new = replace(lab.stage(destination, [create(2)]), step=KEPT_STEPS + 100)
    destination.publish(new)
    assert (destination.holds(old), destination.holds(new)) == (False, True)
    with pytest.raises(FatalError) as error:
        destination.publish(old)
    assert error.value.code == "postgres.step_pruned"
    # what the fix says, for another project with these ids or a new state store, leaves all hashes
    statement = re.search(r"DELETE .*?'[^']*'", error.value.fix or "")
    assert statement is not None
    lab.execute(statement[0])
    of_another = lab.deliver(destination, [create(3)])
    assert of_another.step < new.step and destination.holds(of_another) and destination.holds(new)
    lab.execute("DELETE FROM t WHERE id = 3")
    assert lab.rows() == [(1,), (2,)]
    other = lab.destination("another")
    other.publish(replace(old, hash="other"))
    assert lab.rows() == [(1,), (1,), (2,)]


def test_ids_with_colons_share_no_floor(lab: PostgresLab, monkeypatch: pytest.MonkeyPatch) -> None:
    from dataclasses import replace

    monkeypatch.setattr(kept_hashes, "_EVERY", 1)
    lab.execute("CREATE TABLE t (id int)")
    far = lab.destination("a")
    far.publish(replace(lab.stage(far, [create(1)]), consumer="b:c", step=KEPT_STEPS + 100))
    near = lab.destination("a:b")
    near.publish(replace(lab.stage(near, [create(2)]), hash="near", consumer="c", step=1))
    assert lab.rows() == [(1,), (2,)]


def test_what_is_remembered_of_a_delivery(lab: PostgresLab) -> None:
    lab.execute("CREATE TABLE t (id int)")
    delivery = lab.deliver(lab.destination(), [create(1), create(2)])
    query = "SELECT hash, state, pipeline, consumer, step, records, at <= now() FROM conduit_deliveries"
    assert lab.execute(query) == [(delivery.hash, "delivered", "p", "out", 1, 2, True)]
    assert json.dumps(delivery.target) == "{}"


@pytest.mark.parametrize("place", ["t (id int)", "p PARTITION OF t FOR VALUES IN (1)"])
def test_exactly_once_refuses_rows_on_another_server(lab: PostgresLab, place: str) -> None:
    """It commits them on its own, before the hash: a crash in between would have them twice."""
    lab.execute("CREATE FOREIGN DATA WRAPPER w; CREATE SERVER s FOREIGN DATA WRAPPER w")
    if "PARTITION" in place:
        lab.execute("CREATE TABLE t (id int) PARTITION BY LIST (id)")
    lab.execute(f"CREATE FOREIGN TABLE {place} SERVER s")
    often = lab.destination()
    often.check()
    once = PostgresDestination(often.settings, replace(often.context, strategy="exactly-once"))
    with pytest.raises(FatalError) as error:
        once.check()
    assert error.value.code == "postgres.foreign_table"
    lab.execute("DROP FOREIGN DATA WRAPPER w CASCADE; CREATE TABLE IF NOT EXISTS t (id int)")
    once.check()
