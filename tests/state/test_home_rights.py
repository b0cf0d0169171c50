"""Who may read the home and the state store."""

from __future__ import annotations

import os
import stat
from pathlib import Path

from conduit_dagster.state.claim import open_store
from conduit_dagster.state.lease import acquire


def mode(path: Path) -> int:
    return stat.S_IMODE(path.stat().st_mode)


def test_the_home_and_the_store_are_their_users_only(tmp_path: Path) -> None:
    home = tmp_path / "home"
    engine = open_store(f"sqlite:///{home}/state.db", home)
    lease = acquire(engine, "p", 10.0)
    assert {file.name for file in home.iterdir()} >= {"state.db", "state.db-wal", "state.db-shm", "project"}
    assert {file.name: oct(mode(file)) for file in home.iterdir() if mode(file) & 0o077} == {}
    assert mode(home) == 0o700
    lease.release()
    engine.dispose()


def test_a_wider_home_is_narrowed_unless_the_project_shares_it(tmp_path: Path) -> None:
    home = tmp_path / "home"
    home.mkdir(mode=0o755)
    open_store(f"sqlite:///{home}/state.db", home, private=False).dispose()
    assert mode(home) == 0o755
    open_store(f"sqlite:///{home}/state.db", home).dispose()
    assert mode(home) == 0o700


def test_in_a_shared_home_the_umask_says_who_may_use_the_store(tmp_path: Path) -> None:
    """Its file was its first user's only, so that nobody else of the group could open the store."""
    home, before = tmp_path / "home", os.umask(0o002)
    try:
        engine = open_store(f"sqlite:///{home}/state.db", home, private=False)
        lease = acquire(engine, "p", 10.0)
        files = {file.name: mode(file) for file in home.iterdir()}
        lease.release()
        files["state-age"] = mode(home / "state-age")
        engine.dispose()
    finally:
        os.umask(before)
    assert files == dict.fromkeys(("state.db", "state.db-wal", "state.db-shm", "project", "state-age"), 0o664)
    assert mode(home) == 0o775


def test_a_folder_elsewhere_that_holds_the_store_keeps_its_rights(tmp_path: Path) -> None:
    (tmp_path / "data").mkdir(mode=0o755)
    open_store(f"sqlite:///{tmp_path}/data/state.db", tmp_path / "home").dispose()
    assert (mode(tmp_path / "data"), mode(tmp_path / "data/state.db")) == (0o755, 0o600)
