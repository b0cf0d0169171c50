"""A new owner takes over from one that is frozen, or that was cut off in its commit."""

from __future__ import annotations

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from typing import Any
from urllib.parse import urlsplit

import pytest
from lab.postgres_lab import PostgresLab, at_half, create
from lab.waiting import wait_until

from conduit_dagster.connectors.postgres.destination import PostgresDestination
from conduit_dagster.recovery.errors import TransientError
from conduit_dagster.sdk import Delivery


def taken_over(lab: PostgresLab, old: PostgresDestination, new: PostgresDestination) -> Delivery:
    """Return a delivery that the new owner has published, whole, while the old one was in the middle of it."""
    delivery = lab.stage(old, [create(i, v="x" * 1_000) for i in range(3_000)])

    def take_over() -> None:
        new.fence(2)
        new.publish(delivery)

    with at_half(take_over), pytest.raises(TransientError):
        old.publish(delivery)
    assert len(lab.rows()) == 3_000
    return delivery


def test_a_fence_ends_the_transaction_of_a_frozen_owner(lab: PostgresLab) -> None:
    """The new owner publishes the same delivery at once; the old one thaws to an error, and to a finished delivery."""
    lab.execute("CREATE TABLE t (id int, v text)")
    old, new, other = lab.destination(), lab.destination(), lab.destination("another")
    for epoch, one in ((1, old), (1, other)):
        one.fence(epoch)
    delivery = taken_over(lab, old, new)
    old.publish(delivery)
    assert len(lab.rows()) == 3_000

    def epochs() -> list[str]:
        query = "SELECT application_name FROM pg_stat_activity WHERE datname = current_database()"
        names = [row[0] for row in lab.execute(query)]
        return sorted(name.rpartition(":")[2] for name in names if name.startswith("conduit:"))

    # the thawed owner is back and harmless; another pipeline's connection was never touched; a server process that
    # was ended goes on for a moment after it has given up its locks
    wait_until(lambda: epochs() == ["1", "1", "2"], "each owner has one connection", said=lambda: str(epochs()))


def test_a_fence_finds_the_owner_whose_user_has_a_role_of_another_name(lab: PostgresLab) -> None:
    """As where several logins write as one owner: ``ALTER ROLE login SET role = …``."""
    lab.execute("CREATE TABLE t (id int, v text)")
    lab.execute("CREATE ROLE keeper; CREATE ROLE guest LOGIN PASSWORD 'welcome' IN ROLE keeper")
    lab.execute(
        "ALTER ROLE guest SET role = keeper; ALTER TABLE t OWNER TO keeper; GRANT ALL ON SCHEMA public TO keeper"
    )
    owner = lab.url
    lab.url = urlsplit(owner)._replace(netloc=f"guest:welcome@127.0.0.1:{urlsplit(owner).port}").geturl()
    old, new = lab.destination(), lab.destination(lock_timeout="10s")
    old.fence(1)
    taken_over(lab, old, new)
    new.close()
    lab.url = owner
    lab.execute("DROP OWNED BY keeper, guest; DROP ROLE guest, keeper")


@contextmanager
def without_standby(lab: PostgresLab) -> Iterator[None]:
    """Let commits wait for a standby that is not there."""
    lab.execute("ALTER SYSTEM SET synchronous_standby_names = 'absent'")
    try:
        lab.execute("SELECT pg_reload_conf()")
        wait_until(lambda: lab.execute("SHOW synchronous_standby_names") == [("absent",)], "commits wait")
        yield
    finally:
        lab.execute("ALTER SYSTEM RESET synchronous_standby_names")
        lab.execute("SELECT pg_reload_conf()")


def is_waiting(lab: PostgresLab, epoch: int) -> bool:
    """Return whether a commit of the owner of this epoch waits for a standby."""
    query = "SELECT wait_event = 'SyncRep' FROM pg_stat_activity WHERE application_name LIKE 'conduit:%%:' || %s"
    return (True,) in lab.execute(query, str(epoch))


@pytest.mark.parametrize("look", [PostgresDestination.holds, PostgresDestination.publish])
def test_a_commit_that_was_cut_off_before_a_standby_had_it_is_waited_for(lab: PostgresLab, look: Any) -> None:
    """A server whose waiting connection is ended has committed, and shows it; the standby that replaces it has not."""
    lab.execute("CREATE TABLE t (id int)")
    old, new = lab.destination(), lab.destination()
    old.check()
    old.fence(1)
    delivery = lab.stage(old, [create(1)])
    with ThreadPoolExecutor(2) as pool:
        with without_standby(lab):
            first = pool.submit(old.publish, delivery)
            wait_until(lambda: is_waiting(lab, 1), "the commit waits", over=first.done)
            new.fence(2)
            with pytest.raises(TransientError):
                first.result(60)
            second = pool.submit(look, new, delivery)
            wait_until(lambda: is_waiting(lab, 2), "the look waits as well", over=second.done)
            assert lab.rows() == [(1,)] and not second.done()
        assert second.result(60) is not False
    assert lab.rows() == [(1,)]


@pytest.mark.parametrize("level", ["notice", "error"])
def test_a_commit_whose_wait_for_a_standby_is_cancelled_is_not_done(lab: PostgresLab, level: str) -> None:
    """PostgreSQL then reports success, with a warning, which a user or a database may have switched off."""
    lab.execute("CREATE TABLE t (id int)")
    lab.url += f"?options=-c%20client_min_messages%3D{level}"
    destination = lab.destination()
    destination.check()
    destination.fence(1)
    delivery = lab.stage(destination, [create(1)])
    cancel = "SELECT pg_cancel_backend(pid) FROM pg_stat_activity WHERE wait_event = 'SyncRep'"
    with ThreadPoolExecutor(1) as pool, without_standby(lab):
        first = pool.submit(destination.publish, delivery)
        wait_until(lambda: is_waiting(lab, 1), "the commit waits", over=first.done)
        lab.execute(cancel)
        with pytest.raises(TransientError) as caught:
            first.result(60)
    assert caught.value.code == "postgres.not_replicated" and "synchronous_standby_names" in str(caught.value.fix)
    assert destination.holds(delivery)
    assert lab.rows() == [(1,)]
