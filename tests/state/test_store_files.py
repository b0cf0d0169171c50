"""The files of an SQLite store, which the connections of all processes share."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest
import sqlalchemy as sa
from lab.file_rights import obeyed

from conduit_dagster.recovery.errors import ConduitError
from conduit_dagster.state import tables
from conduit_dagster.state.database import open_database, reading

_READ = """
import sys
from conduit_dagster.state.database import open_database, reading
from conduit_dagster.state.tables import meta
with reading(open_database(sys.argv[1])) as connection:
    print(sorted(connection.execute(meta.select()).scalars()))
"""


def _read_elsewhere(url: str) -> str:
    """Return what another process reads, which then ends: the last one of all would remove the ``-wal`` file."""
    done = subprocess.run([sys.executable, "-c", _READ, url], capture_output=True, text=True, check=True)
    return done.stdout.strip()


def _write(engine: sa.Engine, name: str) -> None:
    with engine.begin() as connection:
        connection.execute(tables.meta.insert().values(name=name, value="1"))


def test_what_is_written_after_a_second_opening_is_there(tmp_path: Path) -> None:
    """A process that closes any descriptor of a file ends all its locks on it, and another one took itself for the
    last: it removed the file into which this one goes on to write."""
    url = f"sqlite:///{tmp_path / 'state.db'}"
    first = open_database(url)
    _write(first, "before")
    second = open_database(url)
    assert "before" in _read_elsewhere(url)
    _write(first, "after")
    assert "after" in _read_elsewhere(url)
    second.dispose()
    _write(first, "at_last")
    assert "at_last" in _read_elsewhere(url)
    with reading(first) as connection:
        assert connection.exec_driver_sql("PRAGMA integrity_check").scalar_one() == "ok"
    first.dispose()


def test_a_store_is_created_where_a_link_leads(tmp_path: Path) -> None:
    (tmp_path / "link.db").symlink_to(tmp_path / "state.db")
    engine = open_database(f"sqlite:///{tmp_path / 'link.db'}")
    _write(engine, "x")
    engine.dispose()
    assert (tmp_path / "state.db").stat().st_size > 0


def test_a_store_that_may_not_be_written_is_refused(tmp_path: Path) -> None:
    file = tmp_path / "state.db"
    open_database(f"sqlite:///{file}").dispose()
    file.chmod(0o400)
    with obeyed(), pytest.raises(ConduitError, match="ermission") as raised:
        open_database(f"sqlite:///{file}")
    assert raised.value.code == "state.unreachable"
