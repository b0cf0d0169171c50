"""``deduplicate`` by itself: which records pass, compared with a simple model, and what it remembers."""

from __future__ import annotations

import base64
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from processors.conftest import make
from pydantic import ValidationError

from conduit_dagster.expressions import Clock
from conduit_dagster.processors.deduplicate import Deduplicate, DeduplicateSettings
from conduit_dagster.record import Record
from conduit_dagster.sdk import DROP, Nack, ProcessorContext
from conduit_dagster.sdk.processor import Entries

SECOND = 1_000_000_000
VALUES: list[Any] = [
    *(0, 1, 1.0, True, 2**63, -(2**63), 2**70, None),
    *("", "1", "é", "x" * 32, "x" * 33),
    *([1], [1, "1"], {"b": 1, "a": 2}),
]
SOURCES = ("a", "b")


def expected(steps: list[list[Any]], records: int | None, seconds: int | None) -> list[Any]:
    """The records that pass, by walking back over all records; a step lasts a second."""
    seen: list[tuple[str, int, int, bool]] = []
    on: list[Any] = []
    for now, step in enumerate(steps):
        for value in step:
            if value is None:
                on.append(value)
                continue
            number, name = len(seen) + 1, repr(value)
            last = next((one for one in reversed(seen) if one[0] == name and one[3]), None)
            over = last is None or (records is not None and number - last[1] > records)
            over = over or (last is not None and seconds is not None and now - last[2] >= seconds)
            seen.append((name, number, now, over))
            if over:
                on.append(value)
    return on


@given(
    st.lists(st.lists(st.sampled_from(VALUES), max_size=6), max_size=8),
    st.one_of(st.none(), st.integers(1, 6)),
    st.one_of(st.none(), st.integers(1, 4)),
    st.sampled_from(["never", "with what was new", "with all that matters"]),
)
def test_as_the_model(steps: list[list[Any]], records: int | None, seconds: int | None, restarts: str) -> None:
    if records is None and seconds is None:
        records = 3
    windows = {"window.records": records, "window.time": f"{seconds}s" if seconds else None}
    settings = DeduplicateSettings.model_validate({"key": "after.v", **{k: v for k, v in windows.items() if v}})
    clock = Clock(0)
    one, on, position = Deduplicate(settings, ProcessorContext("p", "p:x", clock)), list[Any](), 0
    stored = Entries()
    for now, step in enumerate(steps):
        clock.now_ns = now * SECOND
        # two sources that have the same positions
        for at, value in enumerate(step, position):
            one.context.idempotency.source = SOURCES[at % 2]
            (result,) = one.process_block([Record(at // 2, {}, {"v": value})])
            if result is not DROP:
                assert isinstance(result, Record) and isinstance(result.after, dict)
                on.append(result.after["v"])
        position += len(step)
        count, new = one.count, one.news()
        stored.extend(new.keys, new.owners, new.numbers, new.at_ns)
        one.settle()
        if restarts != "never":
            kept = stored.since(0) if restarts == "with what was new" else one.entries()
            one = Deduplicate(settings, ProcessorContext("p", "p:x", clock))
            one.recall(count, kept)
    assert list(map(repr, on)) == list(map(repr, expected(steps, records, seconds)))


def windowed(records: int | None = None, time: str | None = None) -> Deduplicate:
    settings = {"key": "after.v", "window.records": records, "window.time": time}
    return Deduplicate(DeduplicateSettings.model_validate(settings), ProcessorContext("p", "p:x", Clock(0)))


def test_what_is_over_is_forgotten() -> None:
    """A long step stores no more than a window holds."""
    one = windowed(100)
    for first in range(0, 10_000, 50):
        one.process_block([Record(i, {}, {"v": i}) for i in range(first, first + 50)])
    assert list(one.news().numbers) == list(one.entries().numbers) == list(range(9_900, 10_001))


@pytest.mark.parametrize("position", [7, -7, 10**18, 2**63 - 1, 2**63, "7", "f:7", "\u0667", "1" * 5_000, "\udc80"])
def test_a_number_stands_for_its_text(position: int | str) -> None:
    one = windowed(10)
    texts = [Record(at, {}, {"v": 1}) for at in (position, str(position), f"{position}0")]
    assert one.process_block(texts) == [*texts[:2], DROP]


def test_a_clock_that_was_far_ahead_once() -> None:
    """A clock that goes back and forth: entries remembered then do not last until the clock is there again."""
    one = windowed(time="60s")
    one.context.clock.now_ns = 86_400 * SECOND
    assert one.process_block([Record(1, {}, {"v": 1})]) != [DROP]
    for now, wanted in ((10, False), (20, True), (71, False)):
        one.context.clock.now_ns = now * SECOND
        assert (one.process_block([Record(now, {}, {"v": 1})]) == [DROP]) is wanted


def test_what_json_can_not_hold_is_no_key() -> None:
    """As JSON, all three of these were the same."""
    one = windowed(10)
    values = [[float("nan")], [float("inf")], {"a": [-float("inf")]}]
    results = one.process_block([Record(i, {}, {"v": value}) for i, value in enumerate(values)])
    assert [result.code for result in results if isinstance(result, Nack)] == ["expression.failed"] * 3


def test_raw_data_is_no_text() -> None:
    one = make("deduplicate", {"key": "after", "window.records": "10"})
    given: list[Any] = [b"x" * 30, base64.b64encode(b"x" * 30).decode()]
    assert DROP not in one.process_block([Record(i, {}, value) for i, value in enumerate(given)])
    assert DROP not in one.process_block([Record(9, {}, b"y"), Record(10, {}, b"z")])


def test_a_record_is_no_duplicate_of_itself() -> None:
    one = make("deduplicate", {"key": "after.v", "window.records": "10"})
    first, second = (Record(i, {}, {"v": 1}) for i in (1, 2))
    assert one.process_block([first, second, first]) == [first, DROP, first]


def test_a_key_that_fails_is_a_nack_between_its_neighbours() -> None:
    one = make("deduplicate", {"key": "after.v", "window.records": "10"})
    given = [
        Record(1, {}, {"v": 1}),
        Record(2, {}, {}),
        Record(3, {}, b"raw"),
        Record(4, {}, None),
        Record(5, {}, {"v": 2}),
    ]
    results = one.process_block(given)
    codes = [result.code if isinstance(result, Nack) else None for result in results]
    assert codes == [None, None, "expression.failed", None, None]


def test_a_null_in_a_list_makes_it_no_key() -> None:
    """Deletes have no ``after``: they are not duplicates of one another."""
    one = make("deduplicate", {"key": "[after.id, operation]", "window.records": "10"})
    given = [Record(i, {}, None, {"id": i}, None, "delete") for i in range(3)]
    assert one.process_block(given) == given


@pytest.mark.parametrize(
    "settings",
    [
        {"key": "after.v"},
        {"window.records": "5"},
        {"key": "after.v", "window.records": "0"},
        {"key": "after.v", "window.time": "0s"},
        {"key": "after.", "window.records": "5"},
    ],
)
def test_settings_that_say_nothing_are_refused(settings: dict[str, str]) -> None:
    with pytest.raises(ValidationError):
        make("deduplicate", settings)
