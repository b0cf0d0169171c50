"""Values that positions refer to: stored before the plan, and kept as long as anything stored refers to them."""

from __future__ import annotations

import hashlib
import json
import time
from collections.abc import Iterator
from typing import Any

import pytest
import sqlalchemy as sa
from lab.leases import change_owner, silence

from conduit_dagster.state.kept_values import KeptReader, forget_unused
from conduit_dagster.state.lease import LeaseLost, acquire
from conduit_dagster.state.steps import Plan, Range
from conduit_dagster.state.store import PipelineStore
from conduit_dagster.state.tables import generations, kept_values, log_parts, logs, sources

DAY = 24 * 3600 * 10**9


@pytest.fixture
def store(database: sa.Engine) -> Iterator[PipelineStore]:
    lease = acquire(database, "p", 60.0)
    yield PipelineStore(database, lease)
    lease.release()


def digests(store: PipelineStore) -> set[str]:
    with store.engine.connect() as connection:
        return set(connection.execute(sa.select(kept_values.c.digest)).scalars())


def put(store: PipelineStore, *values: bytes) -> list[str]:
    return [store.kept_values("in").put(value) for value in values]


def position(digest: str) -> dict[str, Any]:
    return {"seen": 3, "files": [], "read": {"lists": [[digest, 3]], "sum": "0"}}


def test_a_value_is_named_by_its_digest_and_is_its_source_s_own(store: PipelineStore) -> None:
    value = bytes(range(256)) * 100
    (digest,) = put(store, value)
    assert digest == hashlib.sha256(value).hexdigest()
    assert store.kept_values("in").get(digest) == value
    assert KeptReader(store.engine, "p", "in").get(digest) == value
    assert store.kept_values("in2").get(digest) is None
    assert KeptReader(store.engine, "q", "in").get(digest) is None


def test_a_damaged_value_is_none(store: PipelineStore) -> None:
    (digest,) = put(store, b"value")
    store.transactions.run(lambda connection: connection.execute(sa.update(kept_values).values(value=b"other")))
    assert store.kept_values("in").get(digest) is None


def test_two_owners_put_the_same_value(database: sa.Engine) -> None:
    """The second one after it took over; the first one, which was frozen, stores nothing any more."""
    frozen = acquire(database, "p", 60)
    first = PipelineStore(database, frozen)
    (digest,) = put(first, b"value")
    silence(frozen)
    change_owner(database, pid=2**31 - 1)
    lease = acquire(database, "p", 60)
    second = PipelineStore(database, lease)
    with pytest.raises(LeaseLost):
        put(first, b"value")
    assert put(second, b"value") == [digest]
    assert digests(second) == {digest}
    lease.release()


def test_what_nothing_refers_to_is_forgotten_after_a_week(store: PipelineStore) -> None:
    """Not before: its position may have been printed."""
    (digest,) = put(store, b"value")
    now = time.time_ns()
    forget_unused(store.transactions, "p", now + 6 * DAY)
    assert digests(store) == {digest}
    forget_unused(store.transactions, "q", now + 8 * DAY)
    assert digests(store) == {digest}
    forget_unused(store.transactions, "p", now + 8 * DAY)
    assert digests(store) == set()


def test_what_is_referred_to_is_kept(store: PipelineStore) -> None:
    """By an open or old plan, a source, a log, one of its parts, or a former generation."""
    names = ("plan", "source", "log", "part", "generation", "nothing")
    by = dict(zip(names, put(store, *(name.encode() for name in names)), strict=True))
    store.plan(Plan(1, 1, [Range("in", 1, {"seen": 0, "files": []}, position(by["plan"]), 0)]))
    own = {"pipeline": "p", "source": "in"}

    def refer(connection: sa.Connection) -> None:
        text = {name: json.dumps(position(digest)) for name, digest in by.items()}
        counts = dict.fromkeys(("records", "acked", "filtered", "nacked"), 0)
        connection.execute(sa.insert(sources).values(**own, generation=1, unit="{}", position=text["source"], **counts))
        connection.execute(sa.insert(logs).values(**own, next_offset=1, position=text["log"]))
        connection.execute(sa.insert(generations).values(**own, generation=0, unit="{}", position=text["generation"]))
        part = {"first": 0, "next": 1, "segment": 0, "name": "n", "entries": 1, "bytes": 1, "sha256": "", "nacked": 0}
        connection.execute(sa.insert(log_parts).values(**own, **part, compacted=0, position=text["part"]))

    store.transactions.run(refer)
    now = time.time_ns()
    forget_unused(store.transactions, "p", now + 8 * DAY)
    kept = set(by.values()) - {by["nothing"]}
    assert digests(store) == kept
    # from now on the limit is a week again, although nothing refers to them any more
    store.transactions.run(lambda connection: [connection.execute(sa.delete(t)) for t in (sources, logs, log_parts)])
    forget_unused(store.transactions, "p", now + 14 * DAY)
    assert digests(store) == kept
    forget_unused(store.transactions, "p", now + 16 * DAY)
    assert digests(store) == {by["plan"], by["generation"]}


def test_a_value_that_is_put_again_is_young_again(store: PipelineStore) -> None:
    """The plan that will refer to it is not stored yet."""
    (digest,) = put(store, b"value")
    store.transactions.run(lambda connection: connection.execute(sa.update(kept_values).values(used_ns=1)))
    put(store, b"value")
    forget_unused(store.transactions, "p", time.time_ns())
    assert digests(store) == {digest}
