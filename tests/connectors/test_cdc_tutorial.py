"""The page ``docs/cdc-tutorial.md`` as written: at its end both copies equal the shop."""

from __future__ import annotations

from pathlib import Path

import pytest
from lab.cdc_tutorial import Shop, compare
from lab.postgres_server import PostgresServer
from lab.postgres_tables import drop_slots

pytestmark = pytest.mark.slow


@pytest.mark.usefixtures("connected")
def test_the_page_does_what_it_says(postgres_server: PostgresServer, tmp_path: Path) -> None:
    tutorial = Shop(postgres_server.create_database(), postgres_server.create_database(), tmp_path)
    said: list[str] = []
    tutorial.follow(said.append)
    assert compare(tutorial) == [], "\n".join(said)
    drop_slots(tutorial.shop)
