"""The server that tests run on is a durable one, whichever installation it comes from."""

from __future__ import annotations

from pathlib import Path

import psycopg
import pytest
from lab.postgres_server import PostgresServer, installations


@pytest.mark.slow
@pytest.mark.parametrize("binaries", dict.fromkeys(installations()), ids=lambda path: Path(path).parent.name)
def test_what_is_committed_survives_a_crash(binaries: Path) -> None:
    server = PostgresServer(binaries)
    try:
        url = server.create_database()
        with psycopg.connect(url) as connection:
            assert connection.execute("SHOW fsync").fetchone() == ("on",)
            connection.execute("CREATE TABLE t AS SELECT 1 AS x")
        first = server.pid
        server.stop(immediate=True)
        with pytest.raises(psycopg.OperationalError):
            psycopg.connect(url)
        server.start()
        assert server.pid != first
        with psycopg.connect(url) as connection:
            assert connection.execute("SELECT x FROM t").fetchone() == (1,)
    finally:
        server.close()
    assert not server.is_running
