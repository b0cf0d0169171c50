"""The loss of a state store is noticed: at opening, by the home; during a run, by each transaction."""

from __future__ import annotations

import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import sqlalchemy as sa
from lab.small_disk import no_file_beyond
from lab.waiting import wait_until

from conduit_dagster.config.project import Project
from conduit_dagster.recovery.errors import ConduitError, FatalError
from conduit_dagster.state import tables
from conduit_dagster.state.claim import claim_of, existing_store, is_kept, open_store
from conduit_dagster.state.connector_registrations import Generations, Registry, SourceUnit
from conduit_dagster.state.lease import Transactions, acquire
from conduit_dagster.state.log_registry import LogRegistry
from conduit_dagster.state.readers import log_unit
from conduit_dagster.state.store import PipelineStore


def used(url: str, home: Path) -> None:
    """A store in which a pipeline has run."""
    engine = open_store(url, home)
    acquire(engine, "p", 10.0).release()
    engine.dispose()


def refused(work: Callable[[], Any]) -> ConduitError:
    with pytest.raises(FatalError) as caught:
        work()
    error = caught.value
    assert error.place and error.fix, "an error says where, and what to type"
    return error


def emptied(url: str) -> None:
    """All rows are gone, as after restoring only the schema."""
    engine = sa.create_engine(url.replace("postgresql://", "postgresql+psycopg://"))
    with engine.begin() as connection:
        for table in reversed(tables.metadata.sorted_tables):
            connection.execute(table.delete())
    engine.dispose()


def dropped(url: str) -> None:
    """All tables are gone."""
    engine = sa.create_engine(url.replace("postgresql://", "postgresql+psycopg://"))
    found = sa.MetaData()
    found.reflect(engine)
    found.drop_all(engine)
    engine.dispose()


@pytest.mark.parametrize("lose", [emptied, dropped])
def test_a_store_without_its_content_is_refused_and_not_changed(
    database_url: str, tmp_path: Path, lose: Callable[[str], None]
) -> None:
    """Once it is accepted, it is the project's own from then on."""
    home = tmp_path / "home"
    used(database_url, home)
    lose(database_url)
    for _ in range(2):
        error = refused(lambda: open_store(database_url, home))
        assert error.code == "state.lost"
        assert error.fix and "--accept-new-state" in error.fix
    engine = sa.create_engine(database_url.replace("postgresql://", "postgresql+psycopg://"))
    if lose is dropped:
        assert sa.inspect(engine).get_table_names() == []
    engine.dispose()
    open_store(database_url, home, accept_new=True).dispose()
    used(database_url, home)


@pytest.mark.parametrize("lose", [Path.unlink, lambda file: file.write_bytes(b"")], ids=["deleted", "truncated"])
def test_a_file_that_is_gone_or_empty_is_refused_and_stays_so(tmp_path: Path, lose: Callable[[Path], Any]) -> None:
    file, home = tmp_path / "state.db", tmp_path / "home"
    used(f"sqlite:///{file}", home)
    lose(file)
    assert refused(lambda: open_store(f"sqlite:///{file}", home)).code == "state.lost"
    assert not file.exists() or file.stat().st_size == 0


def test_an_older_copy_is_refused_until_it_is_accepted(tmp_path: Path) -> None:
    file, home = tmp_path / "state.db", tmp_path / "home"
    url = f"sqlite:///{file}"
    used(url, home)
    shutil.copy(file, tmp_path / "backup.db")
    used(url, home)
    used(url, home)
    shutil.copy(tmp_path / "backup.db", file)
    error = refused(lambda: open_store(url, home))
    assert error.code == "state.older"
    open_store(url, home, accept_new=True).dispose()
    used(url, home)


def test_a_rewind_in_an_older_copy_takes_no_generation_of_the_lost_store(tmp_path: Path) -> None:
    """A destination that stores hashes would take what is delivered again for what the lost store delivered."""

    def rewound() -> int:
        engine = open_store(f"sqlite:///{file}", tmp_path / "home", accept_new=True)
        with engine.begin() as connection:
            generation = Generations(connection, "p").new("in", "{}")
        engine.dispose()
        return generation

    file = tmp_path / "state.db"
    rewound()
    shutil.copy(file, tmp_path / "backup.db")
    lost = rewound()
    shutil.copy(tmp_path / "backup.db", file)
    assert rewound() > lost


def test_stores_that_begin_at_the_same_time_share_no_generation(tmp_path: Path) -> None:
    """As of one project in test and production, started by one clock: equal deliveries need different hashes."""
    found = []
    for name in ("test", "production"):
        engine = open_store(f"sqlite:///{tmp_path / name}.db", tmp_path / name)
        with engine.begin() as connection:
            found.append(Generations(connection, "p").new("in", "{}"))
        engine.dispose()
    assert len(set(found)) == 2


def _a_log(_: Registry, logs: LogRegistry) -> None:
    logs.register("in", SourceUnit({"plugin": "file"}, "/"), 0)


def _a_reader(registry: Registry, _: LogRegistry) -> None:
    registry.register_source("in", SourceUnit(log_unit("other", "in"), "/"), 0)


def _a_join(_: Registry, logs: LogRegistry) -> None:
    logs.register_joined("in", SourceUnit({"plugin": "join"}, "/"), [])


def _without_log(registry: Registry, _: LogRegistry) -> None:
    registry.register_source("in", SourceUnit({"plugin": "file"}, "/"), 0)


@pytest.mark.parametrize(
    ("register", "renewed"), [(_a_log, True), (_a_reader, True), (_a_join, True), (_without_log, False)]
)
def test_offsets_are_of_a_new_generation_once_an_older_copy_was_accepted(
    database_url: str, tmp_path: Path, register: Callable[[Registry, LogRegistry], None], renewed: bool
) -> None:
    """Once: the store goes on with it. Positions of other sources name what they named to the lost store."""

    def generation(accept_new: bool = False) -> int:
        engine = open_store(database_url, home, accept_new)
        lease = acquire(engine, "p", 10.0)
        PipelineStore(engine, lease).registering(register)
        with engine.connect() as connection:
            found = connection.execute(sa.select(tables.sources.c.generation)).scalar_one()
        lease.release()
        engine.dispose()
        return found

    home = tmp_path / "home"
    first = generation()
    # the home remembers more than the store has
    (home / "state-age").write_text(f"{(home / 'project').read_text().strip()} 99\n")
    second = generation(accept_new=True)
    assert (second > first) is renewed
    assert (generation(), generation(accept_new=True)) == (second, second)


def test_the_newest_copy_is_taken_as_the_store(tmp_path: Path) -> None:
    """A backup is not a loss if nothing ran after it was made."""
    file, home = tmp_path / "state.db", tmp_path / "home"
    used(f"sqlite:///{file}", home)
    shutil.copy(file, tmp_path / "backup.db")
    file.unlink()
    (tmp_path / "backup.db").rename(file)
    used(f"sqlite:///{file}", home)


USE = """
import gc, sys
from pathlib import Path
from conduit_dagster.state.claim import open_store
from conduit_dagster.state.lease import acquire
acquire(open_store(sys.argv[1], Path(sys.argv[2])), "p", 10.0).release()
gc.freeze()  # as a command does at its end: nothing is closed for being unreachable
"""


def test_once_all_processes_have_ended_the_file_alone_is_the_store(tmp_path: Path) -> None:
    """A copy that is made then is a backup, and no old ``-wal`` file is there to damage one that is put back."""
    file, home = tmp_path / "state.db", tmp_path / "home"
    subprocess.run([sys.executable, "-c", USE, f"sqlite:///{file}", str(home)], check=True)
    assert [found.name for found in tmp_path.glob("state.db*")] == ["state.db"]
    shutil.copy(file, tmp_path / "backup.db")
    (tmp_path / "backup.db").rename(file)
    used(f"sqlite:///{file}", home)


def test_a_full_disk_gets_no_files_in_the_home(tmp_path: Path) -> None:
    """The age is recorded once there is space again."""
    home = tmp_path / "home"
    claim = claim_of(open_store(f"sqlite:///{tmp_path}/state.db", home))
    assert claim is not None
    claim.remember(1)
    before = sorted(home.iterdir())
    with no_file_beyond(0):
        claim.remember(2)
        claim.remember(3)
    assert sorted(home.iterdir()) == before
    claim.remember(4)
    assert (home / "state-age").read_text() == f"{claim.project} 4\n"


def test_a_damaged_file_is_called_damaged(tmp_path: Path) -> None:
    """Not a matter of permissions."""
    file, home = tmp_path / "state.db", tmp_path / "home"
    used(f"sqlite:///{file}", home)
    data = bytearray(file.read_bytes())
    data[100:4096] = b"\xff" * 3996
    file.write_bytes(bytes(data))
    error = refused(lambda: open_store(f"sqlite:///{file}", home))
    assert error.code == "state.damaged"
    assert error.fix and "backup" in error.fix


# -- during a run ---------------------------------------------------------------------------------------------------


def _deleted(file: Path) -> None:
    for name in ("", "-wal", "-shm"):
        file.with_name(f"{file.name}{name}").unlink(missing_ok=True)


def _by_another(file: Path) -> None:
    shutil.copy(file, file.with_name("copy"))
    file.with_name("copy").replace(file)


@pytest.mark.parametrize("lose", [_deleted, _by_another, lambda file: file.write_bytes(b"")])
def test_nothing_is_committed_to_a_file_that_was_replaced(tmp_path: Path, lose: Callable[[Path], Any]) -> None:
    file = tmp_path / "state.db"
    engine = open_store(f"sqlite:///{file}", tmp_path / "home")
    lease = acquire(engine, "p", 10.0)
    transactions = Transactions(engine, lease)
    transactions.run(lambda _: None)
    lose(file)
    for work in (transactions.run, transactions.read):
        error = refused(lambda work=work: work(lambda connection: connection.execute(sa.select(tables.meta)).all()))
        assert error.code == "state.replaced"
    assert not is_kept(engine)
    lease.release()
    engine.dispose()


def test_a_replacement_during_a_transaction_is_noticed_at_its_commit(tmp_path: Path) -> None:
    file = tmp_path / "state.db"
    engine = open_store(f"sqlite:///{file}", tmp_path / "home")
    lease = acquire(engine, "p", 10.0)
    error = refused(lambda: Transactions(engine, lease).run(lambda _: _deleted(file)))
    assert error.code == "state.replaced"
    lease.release()
    engine.dispose()


@pytest.mark.parametrize("lose", [emptied, dropped])
def test_tables_that_are_emptied_during_a_run_end_it(
    postgres_url: str, tmp_path: Path, lose: Callable[[str], None]
) -> None:
    engine = open_store(postgres_url, tmp_path / "home")
    lease = acquire(engine, "p", 10.0)
    transactions = Transactions(engine, lease)
    lose(postgres_url)
    assert refused(lambda: transactions.run(lambda _: None)).code == "state.replaced"
    assert not is_kept(engine)
    assert refused(lambda: acquire(engine, "q", 10.0)).code == "state.replaced"
    lease.release()
    engine.dispose()


@pytest.mark.parametrize("change", [{"epoch": 0}, {"heartbeat": 0}], ids=["earlier-run", "this-run"])
def test_a_store_that_goes_back_ends_the_run(database_url: str, tmp_path: Path, change: dict[str, int]) -> None:
    """As after a failover that lost transactions, or a backup copied over the file."""
    engine = open_store(database_url, tmp_path / "home")
    acquire(engine, "p", 10.0).release()
    lease = acquire(engine, "p", 0.04)
    wait_until(lambda: lease._last_beat > 2, "the heartbeat is known")
    lease._ended.set()
    lease._thread.join()
    with engine.begin() as connection:
        connection.execute(sa.update(tables.pipelines).values(**change))
    assert refused(lambda: Transactions(engine, lease).run(lambda _: None)).code == "state.replaced"
    engine.dispose()


def test_a_store_that_lost_the_last_transaction_ends_the_run(database_url: str, tmp_path: Path) -> None:
    """However short the time since: the heartbeat thread knows of one every few seconds."""
    engine = open_store(database_url, tmp_path / "home")
    lease = acquire(engine, "p", 10.0)
    transactions = Transactions(engine, lease)
    transactions.run(lambda _: None)
    with engine.connect() as connection:
        before = connection.execute(sa.select(tables.pipelines)).mappings().one()
    transactions.run(lambda _: None)
    with engine.begin() as connection:
        connection.execute(sa.update(tables.pipelines).values(**before))
    assert refused(lambda: transactions.run(lambda _: None)).code == "state.replaced"
    lease.release()
    engine.dispose()


@pytest.mark.parametrize(("home", "at_its_end"), [("home", False), ("another", False), ("home", True)])
def test_a_store_that_a_run_found_set_back_is_refused_until_it_is_accepted(
    database_url: str, tmp_path: Path, home: str, at_its_end: bool
) -> None:
    """The home hears of the store's age every few seconds only, and other pipelines go on counting."""
    engine = open_store(database_url, tmp_path / "home")
    lease = acquire(engine, "p", 10.0)
    transactions = Transactions(engine, lease)
    transactions.run(lambda _: None)
    with engine.begin() as connection:
        connection.execute(sa.update(tables.pipelines).values(heartbeat=tables.pipelines.c.heartbeat - 1))
    if not at_its_end:
        assert refused(lambda: transactions.run(lambda _: None)).code == "state.replaced"
    lease.release()
    assert not is_kept(engine), "a daemon that has it open finds out as well"
    engine.dispose()
    for _ in range(3):
        error = refused(lambda: open_store(database_url, tmp_path / home))
        assert error.code == "state.older"
        assert "during a run of pipeline p" in error.message
        assert ("-wal" in str(error.fix)) == database_url.startswith("sqlite"), "a database has no such file"
    open_store(database_url, tmp_path / home, accept_new=True).dispose()
    for name in ("home", "another"):
        used(database_url, tmp_path / name)


@pytest.mark.parametrize(
    "url", ["sqlite:///{}", "sqlite+pysqlite:///{}", "sqlite+pysqlite:///state.db", "sqlite:///{}?timeout=5"]
)
def test_reading_finds_the_store_in_a_file_and_creates_none(tmp_path: Path, url: str) -> None:
    file = tmp_path / "state.db"
    project = Project.find(tmp_path, {"CONDUIT_STATE_URL": url.format(file)})
    assert existing_store(project) is None
    assert not file.exists()
    used(project.state_url, tmp_path / "of another project's folder")
    store = existing_store(project)
    assert store is not None
    store.dispose()
