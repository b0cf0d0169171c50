"""References: their syntax, and what reading and changing a field does to a record."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from conduit_dagster.field_reference import (
    FieldError,
    FieldExistsError,
    Reference,
    ReferenceSyntaxError,
    UnresolvedReferenceError,
    UnsuitableValueError,
)
from conduit_dagster.record import Record, copy


def record(after: Any = None, **parts: Any) -> Record:
    return Record(7, {"opencdc.collection": "orders"}, after, **parts)


@pytest.mark.parametrize(
    ("text", "root", "path"),
    [
        (".Key", "key", ()),
        (".Key.x", "key", ("x",)),
        (".Payload.Before.a", "before", ("a",)),
        (".Payload.After.a.b", "after", ("a", "b")),
        (".Payload.After.IMDB Rating", "after", ("IMDB Rating",)),
        ('.Payload.After["IMDB Rating"]', "after", ("IMDB Rating",)),
        ('.Payload.After["a.b"]["c"].d', "after", ("a.b", "c", "d")),
        (".Payload.After['it\"s']", "after", ('it"s',)),
        (r'.Payload.After["a\"b\\c\d"]', "after", ('a"b\\c\\d',)),
        ('.Payload.After[""]', "after", ("",)),
        ('.Payload.After["]"]', "after", ("]",)),
        (".Payload.After.über", "after", ("über",)),
        (".Payload.After.0", "after", ("0",)),
        ('.Payload.After["a,b"]', "after", ("a,b",)),
        (".Metadata", "metadata", ()),
        (".Metadata.opencdc.collection", "metadata", ("opencdc.collection",)),
        ('.Metadata["opencdc.collection"]', "metadata", ("opencdc.collection",)),
        (".Metadata.a..b", "metadata", ("a..b",)),
        (".Operation", "operation", ()),
        (".Position", "position", ()),
        ("$.Payload.After.a", "after", ("a",)),
        ("$.Metadata.a.b", "metadata", ("a.b",)),
        (".payload.after.a", "after", ("a",)),
        (".Payload.before", "before", ()),
        (".key.x", "key", ("x",)),
        (".metadata.a.b", "metadata", ("a.b",)),
        (".operation", "operation", ()),
        (".position", "position", ()),
    ],
)
def test_parses(text: str, root: str, path: tuple[str, ...]) -> None:
    """Only dots separate plain names; brackets hold any name; all after ``.Metadata.`` is one name.

    As in Conduit, the parts of a record may be written in small letters.
    """
    parsed = Reference.parse(text)
    assert (parsed.root, parsed.path) == (root, path)


@pytest.mark.parametrize(
    ("text", "column", "fix"),
    [
        ("", 0, "begin with .Payload.After"),
        (".", 0, "begin with"),
        ("Payload.After.a", 0, "begin with"),
        ("(.Key)", 0, "begin with"),
        (".foo", 0, "begin with"),
        ('["Payload.After"]', 0, "begin with"),
        (".PAYLOAD.AFTER.a", 0, "did you mean .Payload.After?"),
        (".Payload", 0, "did you mean .Payload.After?"),
        (".Payload.Aftr.x", 8, "did you mean .Payload.After?"),
        (".Metdata.x", 0, "did you mean .Metadata?"),
        (".Payload.After.", 14, "after the dot"),
        (".Payload.After..a", 14, "after the dot"),
        (".Payload.After.tags[0]", 19, "items of a list"),
        ('.Payload.After["a', 14, "in quotes"),
        ('.Payload.After["a"]b', 19, "after the dot"),
        (".Position.x", 9, "end it here: .Position"),
        (".Operation.x", 10, "end it here: .Operation"),
        ('.Metadata["a"]["b"]', 14, 'end it here: .Metadata["a"]'),
        ('.Metadata.a["b"]', 10, '.Metadata["name"]'),
        (".Metadata.", 10, ".Metadata.name"),
        (".Payload.After.a, .Payload.After.b", 16, "one field"),
        ('.Payload.After."a.b"', 15, 'in brackets: ["…"]'),
        (".Payload.After.a']", 16, "in brackets"),
        (".Metadata.a,.Metadata.b", 11, "one field"),
    ],
)
def test_refuses_with_place_and_fix(text: str, column: int, fix: str) -> None:
    """Text that is not a field reference is refused with the wrong column and the fix."""
    with pytest.raises(ReferenceSyntaxError) as caught:
        Reference.parse(text)
    assert caught.value.column == column
    assert fix in caught.value.fix
    assert caught.value.message == str(caught.value)


@given(st.lists(st.text(), min_size=1, max_size=4), st.integers())
def test_every_name_can_be_written_and_read_back(names: list[str], value: int) -> None:
    """Whatever a document's field is called, brackets refer to it, and reading returns what was set."""
    quoted = "".join('["' + name.replace("\\", "\\\\").replace('"', '\\"') + '"]' for name in names)
    reference = Reference.parse(".Payload.After" + quoted)
    subject = record()
    reference.set(subject, value)
    assert reference.path == tuple(names)
    assert reference.get(subject) == value


@given(st.text())
def test_parsing_ends_in_a_reference_or_a_refusal(text: str) -> None:
    """No text makes parsing fail in another way."""
    for written in (text, ".Payload.After" + text):
        try:
            Reference.parse(written)
        except ReferenceSyntaxError as error:
            assert 0 <= error.column <= len(written)


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        (".Payload.After.a.b", 1),
        (".Payload.After.a.x", None),
        (".Payload.After.x.y", None),
        (".Payload.After.nil.y", None),
        (".Payload.Before.x", None),
        (".Key", b"k"),
        (".Metadata.opencdc.collection", "orders"),
        (".Metadata.x", None),
        (".Operation", "create"),
        (".Position", "7"),
    ],
)
def test_get(text: str, expected: Any) -> None:
    """A missing field reads as null, and reading leaves the record as it was."""
    subject = record({"a": {"b": 1}, "nil": None}, key=b"k")
    before = copy(subject)
    assert Reference.parse(text).get(subject) == expected
    assert subject == before


@pytest.mark.parametrize(
    ("text", "after", "message"),
    [
        (
            ".Payload.After.x",
            b"raw",
            ".Payload.After does not contain structured data but raw data: put json.decode",
        ),
        (".Payload.After.a.b", {"a": "s"}, ".Payload.After.a does not contain structured data but text"),
        (
            ".Payload.After.a.b.c",
            {"a": {"b": 1}},
            ".Payload.After.a.b does not contain structured data but a number",
        ),
        ('.Payload.After["x.y"].b', {"x.y": [1]}, '.Payload.After["x.y"] does not contain'),
    ],
)
def test_the_way_through_what_is_no_document_is_refused(text: str, after: Any, message: str) -> None:
    """Every action names the part that is not a document; the record stays unchanged."""
    reference = Reference.parse(text)
    for act in (
        reference.get,
        lambda r: reference.set(r, 1),
        reference.delete,
        lambda r: reference.rename(r, "n"),
    ):
        subject = record(after)
        before = copy(subject)
        with pytest.raises(UnresolvedReferenceError, match="does not contain structured data") as caught:
            act(subject)
        assert str(caught.value).startswith(message)
        assert subject == before


@pytest.mark.parametrize("after", [None, {}, {"a": None}, {"a": {}}])
def test_changing_creates_the_way(after: Any) -> None:
    """Missing and null parents become documents, also for a removal (golden exclude, rename-nested)."""
    reference = Reference.parse(".Payload.After.a.b.c")
    subjects = [copy(record(after)) for _ in range(3)]
    reference.set(subjects[0], 1)
    reference.delete(subjects[1])
    reference.rename(subjects[2], "d")
    assert [s.after for s in subjects] == [
        {"a": {"b": {"c": 1}}},
        {"a": {"b": {}}},
        {"a": {"b": {"d": None}}},
    ]


@pytest.mark.parametrize(
    ("value", "expected"),
    [("text", b"text"), (b"raw", b"raw"), ({"a": 1}, {"a": 1}), (None, None), ("ü", b"\xc3\xbc")],
)
def test_a_whole_payload_takes_a_document_text_or_null(value: Any, expected: Any) -> None:
    """Text becomes raw data, in the key as in the payloads."""
    for text, part in ((".Payload.After", "after"), (".Payload.Before", "before"), (".Key", "key")):
        subject = record(b"old", before=b"old", key=b"old")
        Reference.parse(text).set(subject, value)
        assert getattr(subject, part) == expected


@pytest.mark.parametrize("value", [1, 1.5, True, [1]])
def test_a_whole_payload_takes_nothing_else(value: Any) -> None:
    """A number, boolean or list is not a payload (golden json-decode-not-json)."""
    with pytest.raises(UnsuitableValueError, match="takes a document, text or null"):
        Reference.parse(".Payload.After").set(record(), value)


def test_removing_a_whole_part_empties_it() -> None:
    """A payload becomes null and metadata an empty dict (golden exclude-whole)."""
    subject = record({"a": 1}, key=b"k")
    for text in (".Payload.After", ".Key", ".Metadata"):
        Reference.parse(text).delete(subject)
    assert (subject.after, subject.key, subject.metadata) == (None, None, {})


def test_metadata_is_replaced_never_changed() -> None:
    """Other records share the dict: every change makes a new one."""
    shared = {"a": "1"}
    subject = Record(1, shared)
    reference = Reference.parse(".Metadata.a")
    reference.set(subject, "2")
    assert subject.metadata == {"a": "2"}
    reference.rename(subject, "b")
    assert subject.metadata == {"b": "2"}
    Reference.parse(".Metadata.b").delete(subject)
    reference.rename(subject, "new")
    assert subject.metadata == {"new": ""}
    Reference.parse(".Metadata.new").set(subject, None)
    Reference.parse(".Metadata").set(subject, {"x": "y"})
    assert (subject.metadata, shared) == ({"x": "y"}, {"a": "1"})


def test_metadata_takes_text_only() -> None:
    """Metadata maps text to text; nothing is converted implicitly."""
    for text, value in ((".Metadata.a", 1), (".Metadata", {"a": 1}), (".Metadata", "x")):
        with pytest.raises(UnsuitableValueError, match="text"):
            Reference.parse(text).set(record(), value)


def test_operation_is_one_of_four() -> None:
    """Another operation is refused with the existing ones."""
    subject = record()
    Reference.parse(".Operation").set(subject, "delete")
    assert subject.operation == "delete"
    for value in ("nonsense", None, 1, ["create"]):
        with pytest.raises(UnsuitableValueError, match="create, update, delete, snapshot"):
            Reference.parse(".Operation").set(subject, value)


def test_what_cannot_be_changed_says_so() -> None:
    """The position is its source's; an operation cannot go; a whole part has no name of its own."""
    subject = record({"a": 1})
    before = copy(subject)
    position, operation = Reference.parse(".Position"), Reference.parse(".Operation")
    for act in (
        lambda: position.set(subject, "8"),
        lambda: position.delete(subject),
        lambda: operation.delete(subject),
        lambda: operation.rename(subject, "o"),
        lambda: Reference.parse(".Payload.After").rename(subject, "o"),
        lambda: Reference.parse(".Metadata").rename(subject, "o"),
    ):
        with pytest.raises(FieldError, match="cannot be"):
            act()
    assert subject == before


def test_renaming_overwrites_nothing() -> None:
    """An existing name is refused, and so is a field's own name."""
    subject = record({"a": 1, "b": None})
    for text, name in ((".Payload.After.a", "b"), (".Payload.After.a", "a"), (".Payload.After.missing", "a"),
                       (".Metadata.opencdc.collection", "opencdc.collection")):  # fmt: skip
        with pytest.raises(FieldExistsError, match=f"a field '{name}' exists"):
            Reference.parse(text).rename(subject, name)
    assert subject == record({"a": 1, "b": None})


def test_renaming_a_missing_field_to_its_own_name_does_nothing() -> None:
    subject = record({})
    Reference.parse(".Payload.After.a").rename(subject, "a")
    Reference.parse(".Metadata.none").rename(subject, "none")
    assert subject == record({})
