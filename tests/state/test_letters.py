"""The index of dead letters: filters, pages, and letters chosen, closed or returned by a replay."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
import sqlalchemy as sa
from lab.leases import change_owner, silence
from sqlalchemy import event

from conduit_dagster.state import dead_letter_replays, letter_index
from conduit_dagster.state.database import reading
from conduit_dagster.state.dead_letter_replays import close_letters
from conduit_dagster.state.dead_letters import (
    STATES,
    DeadLetterQuery,
    fail_again,
    forget_missed_between,
    insert_parts,
    newest,
    pages,
    reasons,
)
from conduit_dagster.state.delivery_store import move_offsets, offsets_of
from conduit_dagster.state.history import events
from conduit_dagster.state.lease import LeaseLost, acquire
from conduit_dagster.state.letter_index import UnindexedPart
from conduit_dagster.state.steps import DeadLetter, LetterPart, Plan, Range
from conduit_dagster.state.store import PipelineStore
from conduit_dagster.state.tables import dead_letter_parts, dead_letters, sources

Key = tuple[int, int]


@pytest.fixture
def store(database: sa.Engine) -> Iterator[PipelineStore]:
    lease = acquire(database, "p", 60.0)
    yield PipelineStore(database, lease)
    lease.release()


def letter(offset: int, **more: Any) -> DeadLetter:
    """A letter of the source ``in``, in the file ``a``."""
    return DeadLetter("in", 1, str(offset), offset, "p:x", "c", "why: 'é' \"\\", part="a", line=offset)._replace(**more)


def add(store: PipelineStore, step: int, *rows: DeadLetter) -> None:
    """The letters of a step."""
    part = LetterPart(f"a{step}", len(rows), 1, "0" * 64)
    plan = Plan(step, step * 10, [])
    mine = [row._replace(part=f"a{step}") for row in rows]
    store.transactions.run(lambda connection: insert_parts(connection, "p", step, [part]))
    store.letter_index.add(UnindexedPart(plan, part.name, len(rows), 0, 0), 0, mine)


def keys(database: sa.Engine, *states: str, **wanted: Any) -> list[Key]:
    """The letters that are meant, in order."""
    found = pages(database, "p", DeadLetterQuery(states or STATES, **wanted), size=2)
    return [(row["step"], row["number"]) for page in found for row in page]


def test_letters_are_numbered_in_their_order_and_found_by_anything(database: sa.Engine, store: PipelineStore) -> None:
    add(store, 1, letter(0), letter(5, node="p:y"), letter(6, code="d"))
    add(store, 2, letter(7, source="in2"), letter(9, namespace="n"))
    assert keys(database) == [(1, 0), (1, 1), (1, 2), (2, 0), (2, 1)]
    assert keys(database, node="p:y") == [(1, 1)] and keys(database, code="d") == [(1, 2)]
    assert keys(database, source="in2") == [(2, 0)] and keys(database, namespace="n") == [(2, 1)]
    assert keys(database, since_ns=20) == [(2, 0), (2, 1)] and keys(database, until_ns=20) == [(1, 0), (1, 1), (1, 2)]
    assert keys(database, part="a2") == [(2, 0), (2, 1)] and keys(database, keys=[(1, 2), (2, 0)]) == [(1, 2), (2, 0)]
    assert [row["offset"] for row in newest(database, "p", DeadLetterQuery(), 3)] == [9, 7, 6]
    assert newest(database, "p", DeadLetterQuery(), 1)[0]["message"] == "why: 'é' \"\\"
    assert [(row["code"], row["letters"]) for row in reasons(database, "p", DeadLetterQuery(node="p:x"))] == [
        ("c", 3),
        ("d", 1),
    ]


def test_whatever_a_record_holds_is_kept_and_found(database: sa.Engine, store: PipelineStore) -> None:
    """PostgreSQL has no NULs, and counts characters."""
    odd, long = "a\0b\ud800é", "n" * 300
    add(store, 1, letter(0, position=odd, code="c" * 200, message=odd, namespace=odd), letter(1, namespace=long))
    assert keys(database, namespace=odd) == [(1, 0)] and keys(database, namespace=long) == [(1, 1)]
    row = newest(database, "p", DeadLetterQuery(namespace=odd), 1)[0]
    assert (row["position"], row["message"], len(row["code"])) == ("a\\x00b\\ud800é", "a\\x00b\\ud800é", 128)
    moves = {"in": {odd: 3, long: 4}}
    store.transactions.run(lambda connection: move_offsets(connection, "p", ["out"], moves))
    with reading(database) as connection:
        known = offsets_of(connection, "p", "in")["out"]
    assert known == {"a\\x00b\\ud800é": 3, "n" * 256: 4}


def test_thousands_may_be_named(database: sa.Engine, store: PipelineStore) -> None:
    add(store, 1, *map(letter, range(1_500)))
    named = [(1, number) for number in range(1_200)]
    assert sum(row["letters"] for row in reasons(database, "p", DeadLetterQuery(keys=named))) == 1_200
    assert len(newest(database, "p", DeadLetterQuery(keys=named), 2_000)) == 1_200
    assert store.replays.discard(DeadLetterQuery(keys=named), "why", "me") == 1_200
    assert begun(store, DeadLetterQuery(keys=[(1, number) for number in range(1_500)])) == 300


def test_a_transaction_discards_or_selects_a_few_thousand_and_says_what_it_did(
    database: sa.Engine, store: PipelineStore
) -> None:
    add(store, 1, *map(letter, range(12_000)))
    assert begun(store) == 12_000 and store.replays.give_back() == 12_000
    assert store.replays.discard(DeadLetterQuery(), "why", "me") == 12_000
    found = reasons(database, "p", DeadLetterQuery(STATES))
    assert [(row["state"], row["letters"]) for row in found] == [("discarded", 12_000)]
    told = [event.detail["letters"] for event in events(database, "p", 10) if event.event == "discarded"]
    assert sorted(told) == [2_000, 5_000, 5_000]


def test_what_a_killed_selection_has_moved_is_reopened(
    database: sa.Engine, store: PipelineStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    add(store, 1, *map(letter, range(7_000)))
    monkeypatch.setattr(dead_letter_replays, "record_event", _killed)
    with pytest.raises(KeyboardInterrupt):
        begun(store)
    assert [row["letters"] for row in reasons(database, "p", DeadLetterQuery(("replaying",)))] == [7_000]
    monkeypatch.undo()
    assert store.replays.give_back() == 7_000
    assert begun(store) == 7_000


def _killed(*_: Any, **__: Any) -> None:
    raise KeyboardInterrupt


def test_the_files_are_told_to_the_owner_alone(database: sa.Engine) -> None:
    """A replaced owner would remove those of its successor."""
    first = acquire(database, "p", 0.4)
    mine = PipelineStore(database, first)
    add(mine, 1, letter(0))
    assert mine.replays.kept_parts() == {"a1"}
    silence(first)
    change_owner(database, host="elsewhere", boot="other")
    second = acquire(database, "p", 0.4)
    with pytest.raises(LeaseLost):
        mine.replays.kept_parts()
    assert PipelineStore(database, second).replays.kept_parts() == {"a1"}
    second.release()


def test_pages_go_back_as_well(database: sa.Engine, store: PipelineStore) -> None:
    add(store, 1, *map(letter, range(5)))
    add(store, 2, *map(letter, range(5, 8)))
    found = pages(database, "p", DeadLetterQuery(), newest_first=True, columns=("offset", "step", "number"), size=3)
    assert [[row["offset"] for row in page] for page in found] == [[7, 6, 5], [4, 3, 2], [1, 0]]


def step_of(replay: int, start: Key | None, end: Key) -> Plan:
    """A replay's step."""
    span = Range("replay@in", replay, None if start is None else list(start), list(end), 0)
    return Plan(9, 1, [span], replay=replay)


def begun(store: PipelineStore, wanted: Any = None, replay: int = 7) -> int:
    """A replay of the letters of ``in``."""
    return store.replays.begin(replay, {"in": "replay@in"}, {"id": replay}, wanted or DeadLetterQuery())


def test_a_replay_takes_its_letters_step_by_step(database: sa.Engine, store: PipelineStore) -> None:
    add(store, 1, *map(letter, range(3)))
    add(store, 2, letter(3), letter(4, source="gone"), letter(5))
    assert begun(store) == 5
    assert store.replays.end_of(7, "in", None, 2) == (1, 1)
    assert store.replays.end_of(7, "in", (1, 1), 2) == (2, 0)
    assert store.replays.end_of(7, "in", (2, 2), 2) is None
    assert [one[:2] for one in store.replays.between(7, "in", (1, 1), (2, 2))] == [(1, 2), (2, 0), (2, 2)]
    assert keys(database, "open") == [(2, 1)]


def test_what_does_not_fail_again_is_closed_with_its_step(database: sa.Engine, store: PipelineStore) -> None:
    add(store, 1, *map(letter, range(4)))
    begun(store)
    again = letter(1, node="p:z", code="new", again=(1, 1), part="b", line=0, missed='["out"]')
    store.transactions.run(lambda connection: fail_again(connection, "p", 7, [again]))
    other = again._replace(missed='["out2"]')
    store.transactions.run(lambda connection: fail_again(connection, "p", 7, [other]))
    store.transactions.run(lambda connection: close_letters(connection, "p", step_of(7, None, (1, 2))))
    assert (keys(database, "replayed"), keys(database, "open")) == ([(1, 0), (1, 2)], [(1, 1)])
    [row] = newest(database, "p", DeadLetterQuery(("open",)), 1)
    assert (row["node"], row["code"], row["attempt"], row["part"]) == ("p:z", "new", 2, "b")
    assert row["missed"] == '["out", "out2"]'  # both destinations lack it
    assert [one[:2] for one in store.replays.between(7, "in", None, (1, 2))] == [(1, 0), (1, 1), (1, 2)]


def test_letters_that_no_prepared_step_has_are_given_back(database: sa.Engine, store: PipelineStore) -> None:
    add(store, 1, *map(letter, range(5)))
    begun(store)
    assert store.replays.give_back(step_of(7, (1, 0), (1, 2))) == 3
    assert keys(database, "replaying") == [(1, 1), (1, 2)]
    assert store.replays.last() == 7  # its name is taken: the step's letters may already be delivered
    assert store.replays.give_back() == 2
    with database.connect() as connection:
        assert connection.execute(sa.select(sources)).all() == []


def test_only_open_letters_whose_record_is_kept_are_taken(database: sa.Engine, store: PipelineStore) -> None:
    add(store, 1, *map(letter, range(4)))
    with database.begin() as connection:
        connection.execute(sa.update(dead_letters).where(dead_letters.c.number == 0).values(part=""))
    assert store.replays.discard(DeadLetterQuery(keys=[(1, 1)]), "why", "me") == 1
    assert store.replays.discard(DeadLetterQuery(keys=[(1, 1)]), "again", "me") == 0
    assert begun(store, DeadLetterQuery(keys=[(1, 0), (1, 1), (1, 2)])) == 1
    assert keys(database, "replaying") == [(1, 2)]
    assert newest(database, "p", DeadLetterQuery(("discarded",)), 1)[0]["note"] == "why"


def test_a_destination_is_struck_off_many_letters_at_once(database: sa.Engine, store: PipelineStore) -> None:
    """A statement per letter kept every other pipeline of the store waiting for as long."""
    missed = ('["two"]', '["one", "two"]', '["one"]')
    add(store, 1, *(letter(number, missed=missed[number % 3]) for number in range(30)))
    statements = list[str]()

    def heard(_: Any, __: Any, text: str, *___: Any) -> None:
        statements.append(text)

    def work(connection: sa.Connection) -> None:
        event.listen(connection, "before_cursor_execute", heard)
        forget_missed_between(connection, "p", "two", ("in",), range(27))

    store.transactions.run(work)
    assert len(statements) == 3
    assert keys(database, "discarded") == [(1, number) for number in range(0, 27, 3)]
    with reading(database) as connection:
        found = sa.select(dead_letters.c.number, dead_letters.c.missed).where(dead_letters.c.state == "open")
        left = dict(row for row in connection.execute(found).tuples())
    assert left == {**{n: '["one"]' for n in range(27) if n % 3}, 27: missed[0], 28: missed[1], 29: missed[2]}


@pytest.mark.parametrize("at_once", [1, 2, 100])
def test_old_closed_letters_are_forgotten_and_open_ones_never(
    database: sa.Engine, store: PipelineStore, monkeypatch: pytest.MonkeyPatch, at_once: int
) -> None:
    monkeypatch.setattr(letter_index, "_KEPT_CLOSED", 1)
    monkeypatch.setattr(letter_index, "_AT_ONCE", at_once)
    for step in (1, 2, 3):
        add(store, step, letter(step))
    add(store, 4, letter(4))
    for step in (1, 2, 3):
        store.replays.discard(DeadLetterQuery(keys=[(step, 0)]), "why", "me")
    store.letter_index.forget_closed()
    assert keys(database) == [(2, 0), (3, 0), (4, 0)]
    with database.connect() as connection:
        assert sorted(connection.execute(sa.select(dead_letter_parts.c.part)).scalars()) == ["a2", "a3", "a4"]


def test_a_file_of_letters_is_indexed_from_where_it_was_left(database: sa.Engine, store: PipelineStore) -> None:
    """Two files of one step, the first one half indexed when its owner was killed."""
    plan = Plan(3, 30, [Range("in", 1, 0, 5, 0)])
    store.plan(plan)
    parts = [LetterPart(f"000000000003-00000{task}-x", 3, 1, "0" * 64) for task in (0, 1)]
    store.transactions.run(lambda connection: insert_parts(connection, "p", 3, parts))
    first, second = store.letter_index.unindexed()
    assert [(one.plan.step, one.letters, one.indexed, one.first) for one in (first, second)] == [
        (3, 3, 0, 0),
        (3, 3, 0, 3),
    ]
    store.letter_index.add(first, 0, [letter(0), letter(1)])
    first, second = store.letter_index.unindexed()
    assert (first.indexed, first.first, second.indexed, second.first) == (2, 0, 0, 3)
    store.letter_index.add(first, 2, [letter(2)])
    [second] = store.letter_index.unindexed()
    store.letter_index.add(second, 0, [letter(3), letter(4), letter(5)])
    assert store.letter_index.unindexed() == []
    assert keys(database) == [(3, number) for number in range(6)]
    assert [row["offset"] for row in newest(database, "p", DeadLetterQuery(), 9)] == [5, 4, 3, 2, 1, 0]


def test_a_file_with_letters_to_be_indexed_is_not_forgotten(
    database: sa.Engine, store: PipelineStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(letter_index, "_KEPT_CLOSED", 0)
    add(store, 1, letter(0), letter(1))
    with database.begin() as connection:
        connection.execute(sa.update(dead_letter_parts).values(letters=3))
    store.replays.discard(DeadLetterQuery(keys=[(1, 0)]), "why", "me")
    store.replays.discard(DeadLetterQuery(keys=[(1, 1)]), "why", "me")
    store.letter_index.forget_closed()
    assert keys(database) == [(1, 1)]
    assert store.replays.kept_parts() == {"a1"}


def test_a_letter_that_at_most_once_closed_fails_again_all_the_same(database: sa.Engine, store: PipelineStore) -> None:
    """Its step is done with the decision; that it failed is indexed afterwards."""
    add(store, 1, *map(letter, range(2)))
    begun(store)
    store.transactions.run(lambda connection: close_letters(connection, "p", step_of(7, None, (1, 1))))
    again = letter(1, code="new", again=(1, 1), part="b", line=0)
    store.transactions.run(lambda connection: fail_again(connection, "p", 7, [again]))
    [row] = newest(database, "p", DeadLetterQuery(("open",)), 9)
    assert (row["number"], row["code"], row["attempt"], row["closed_ns"]) == (1, "new", 2, 0)
    assert keys(database, "replayed") == [(1, 0)]
