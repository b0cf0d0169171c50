"""Transporter's functions, as its own tests have them."""

from __future__ import annotations

import sys
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from processors.conftest import make
from pydantic import ValidationError
from structlog.testing import capture_logs

from conduit_dagster.expressions import Clock
from conduit_dagster.processors.pretty import Pretty, PrettySettings
from conduit_dagster.processors.skip import SkipSettings
from conduit_dagster.record import COLLECTION, OPERATIONS, Record, copy
from conduit_dagster.sdk import DROP, Nack, ProcessorContext

Run = Callable[..., list[Any]]
DOCUMENT = {"_id": "blah", "type": "good", "a.b": 1, 'é "q"': [1], "big": 2**70, "deep": {"type": 1}}
NAMES = st.lists(st.sampled_from([*DOCUMENT, "missing"]), min_size=1, unique=True)


@given(NAMES)
def test_omit_and_pick_share_a_document(names: list[str]) -> None:
    fields = {"fields": ",".join(names)}
    rest, some = (Record("1", {}, dict(DOCUMENT)) for _ in range(2))
    make("omit", fields).process_block([rest])
    make("pick", fields).process_block([some])
    assert rest.after == {name: value for name, value in DOCUMENT.items() if name not in names}
    assert some.after == {name: DOCUMENT[name] for name in names if name in DOCUMENT}
    assert list(some.after) == [name for name in names if name in DOCUMENT]


def test_rename_goes_one_after_the_other(run: Run) -> None:
    settings = {"field_map.a": "b", "field_map.x.y": "c", "field_map.b": "d", "field_map.none": "e"}
    assert run("rename", settings, {"a": 1, "b": 2, "x.y": 3}) == [{"d": 1, "c": 3}]


@pytest.mark.parametrize(
    ("name", "settings"),
    [
        ("omit", {"fields": "a"}),
        ("pick", {"fields": "a"}),
        ("rename", {"field_map.a": "b"}),
        ("skip", {"field": "a", "operator": "==", "match": "1"}),
    ],
)
def test_raw_data_is_a_nack_between_its_neighbours(run: Run, name: str, settings: dict[str, str]) -> None:
    results = run(name, settings, {"a": 1}, b"raw", {"a": 1}, None)
    assert isinstance(results[1], Nack) and results[1].code == "field.unresolved"
    assert results[0] == results[2] and results[3] in (None, DROP)


@pytest.mark.parametrize(
    ("name", "settings"),
    [
        ("omit", {"fields": ""}),
        ("omit", {}),
        ("pick", {"fields": " , "}),
        ("rename", {}),
        ("rename", {"field_map": "x"}),
        ("remap", {}),
        ("opfilter", {}),
        ("opfilter", {"whitelist": "upsert"}),
        ("skip", {"field": "a", "operator": "=", "match": "1"}),
        ("skip", {"field": "a", "operator": "=~", "match": "("}),
        ("skip", {"field": "a", "operator": "<", "match": "ten"}),
        ("skip", {"field": "a", "operator": "<", "match": "NaN"}),
        ("skip", {"field": "a", "operator": "<", "match": "true"}),
        ("pretty", {"spaces": "-1"}),
    ],
)
def test_settings_that_say_nothing_are_refused(name: str, settings: dict[str, str]) -> None:
    with pytest.raises(ValidationError):
        make(name, settings)


def test_remap_leaves_other_namespaces_and_shared_metadata(run: Run) -> None:
    shared, other = {COLLECTION: "foo", "m": "1"}, {COLLECTION: "else"}
    records = [Record(i, metadata, {}) for i, metadata in enumerate((shared, shared, other, {}))]
    make("remap", {"ns_map.foo": "bar"}).process_block(records)  # type: ignore[arg-type]
    assert [one.collection for one in records] == ["bar", "bar", "else", ""]
    assert shared == {COLLECTION: "foo", "m": "1"} and records[0].metadata is records[1].metadata


def test_pretty_logs_what_is_not_secret_and_changes_nothing() -> None:
    def mask(record: Record) -> Record:
        made = copy(record)
        made.after = {**record.after, "ssn": "***"}  # type: ignore[dict-item]
        return made

    context = ProcessorContext("p", "p:x", Clock(0), mask=mask)
    record = Record("1", {}, {"ssn": "1", "é": [1]})
    with capture_logs() as logged:
        Pretty(PrettySettings(), context).process_block([record])
        Pretty(PrettySettings(spaces=0), context).process_block([record])
    assert record.after == {"ssn": "1", "é": [1]}
    assert [row["event"] for row in logged] == [
        '{\n  "ssn": "***",\n  "é": [\n    1\n  ]\n}',
        '{"ssn": "***", "é": [1]}',
    ]


def test_pretty_passes_what_it_can_not_log(monkeypatch: pytest.MonkeyPatch) -> None:
    """A disk of the log that is full, and a document nested too deeply, once nacked the record."""
    subject = make("pretty")
    with Path("/dev/full").open("w", buffering=1) as full:
        monkeypatch.setattr(sys, "stdout", full)
        record = Record("1", {}, {"n": 1})
        assert subject.process_block([record]) == [record]
        monkeypatch.undo()
        with suppress(OSError):
            full.close()
    deep: dict[str, Any] = {}
    for _ in range(100_000):  # Python 3.12 and newer take some thousand
        deep = {"a": deep}
    record = Record("1", {}, deep)
    with capture_logs() as logged:
        assert subject.process_block([record])[0] is record
    assert "[nested too deeply]" in logged[0]["event"] and record.after is deep


GOOD, COUNT = {"type": "good"}, {"count": 10}


@pytest.mark.parametrize(
    ("operators", "field", "match", "document", "goes_on"),
    [
        (["==", "eq", "$eq"], "type", "good", GOOD, True),
        (["==", "eq", "$eq"], "type", "bad", GOOD, False),
        (["=="], "missing", "good", GOOD, False),
        (["=="], "count", "10", COUNT, True),
        (["=="], "count", "10.0", COUNT, True),
        (["=="], "count", '"10"', COUNT, False),
        (["=="], "count", "10", {"count": "10"}, False),
        (["=="], "ok", "true", {"ok": True}, True),
        (["=="], "ok", "1", {"ok": True}, False),
        (["=="], "n", "null", {"n": None}, True),
        (["=~"], "type", "good", {"type": "goodnight"}, True),
        (["=~"], "type", "^good", {"type": "very good"}, False),
        ([">", "gt", "$gt"], "count", "10", {"count": 11}, True),
        ([">", "gt", "$gt"], "count", "10", COUNT, False),
        ([">", "gt", "$gt"], "count", "10.5", {"count": 11}, True),
        ([">=", "gte", "$gte"], "count", "10", COUNT, True),
        ([">=", "gte", "$gte"], "count", "10", {"count": 9.5}, False),
        (["<", "lt", "$lt"], "count", "10", {"count": 9}, True),
        (["<", "lt", "$lt"], "count", "10", COUNT, False),
        (["<=", "lte", "$lte"], "count", "10", {"count": 9.9}, True),
        (["<=", "lte", "$lte"], "count", "10", {"count": 10.1}, False),
        (["lte"], "count", '"10"', COUNT, True),
        (["lte"], "count", "10", {"count": "10"}, True),
        ([">"], "count", "9007199254740992", {"count": 9007199254740993}, True),
        ([">"], "count", "9007199254740992", {"count": "9007199254740993"}, True),
        ([">"], "count", "9", {"count": "1e1"}, True),
        (["=="], "type", "NaN", {"type": "NaN"}, True),
        (["=="], "type", "1e400", {"type": "1e400"}, True),
        (["=="], "l", "[1]", {"l": [True]}, False),
        (["=="], "l", '[1, {"a": null}]', {"l": [1.0, {"a": None}]}, True),
        (["=="], "d", '{"a": [1]}', {"d": {"a": [True]}}, False),
        (["=="], "d", '{"a": 1}', {"d": {"b": 1}}, False),
    ],
)
def test_skip(run: Run, operators: list[str], field: str, match: str, document: Any, goes_on: bool) -> None:
    for operator in operators:
        result = run("skip", {"field": field, "operator": operator, "match": match}, document)
        assert result == [document if goes_on else DROP]


@pytest.mark.parametrize(
    ("operator", "match", "value"),
    [
        ("<=", "10", "ten"),
        ("<=", "10", False),
        ("<=", "10", None),
        ("<=", "10", [1]),
        ("<=", "10", " 10"),
        ("<=", "10", "-inf"),
        ("<=", "10", "NaN"),
        ("=~", "x", 5),
        ("=~", "x", None),
    ],
)
def test_what_can_not_be_compared_is_a_nack(run: Run, operator: str, match: str, value: Any) -> None:
    good = "x" if operator == "=~" else 1
    settings = {"field": "a", "operator": operator, "match": match}
    first, nack, last = run("skip", settings, {"a": good}, {"a": value}, {"a": good})
    assert first == last == {"a": good}
    assert isinstance(nack, Nack) and nack.code == "skip.wrong_type"


@pytest.mark.parametrize(
    ("settings", "expected"),
    [
        ({"whitelist": "insert"}, ["create", "snapshot"]),
        ({"whitelist": "Insert, UPDATE"}, ["create", "snapshot", "update"]),
        ({"blacklist": "delete"}, ["create", "snapshot", "update"]),
        ({"whitelist": "create,delete", "blacklist": "delete"}, ["create"]),
        ({"blacklist": "insert"}, ["delete", "update"]),
    ],
)
def test_opfilter(settings: dict[str, str], expected: list[str]) -> None:
    records = [Record(i, {}, {}, operation=operation) for i, operation in enumerate(OPERATIONS)]
    results = make("opfilter", settings).process_block(records)
    assert sorted(one.operation for one in results if isinstance(one, Record)) == expected
    assert all(isinstance(one, Record) or one is DROP for one in results)


def test_a_bad_expression_of_skip_is_told_in_words() -> None:
    """RE2's own message is text: it came as the bytes of a library, ``b'missing ): ('``."""
    with pytest.raises(ValidationError, match=r"not a regular expression: missing \)") as caught:
        SkipSettings.model_validate({"field": "a", "operator": "=~", "match": "("})
    assert "b'" not in str(caught.value.errors()[0]["msg"])
