"""``python -m lab.cdc_tutorial FOLDER``: follow the page ``docs/cdc-tutorial.md`` as written."""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import closing
from pathlib import Path
from typing import Any, NamedTuple

import psycopg
from deltalake import DeltaTable

from lab.postgres_server import PostgresServer, installations

ROOT = Path(__file__).parents[2]
PAGE = ROOT / "docs" / "cdc-tutorial.md"
TABLES = ("customers", "orders")
_BLOCK = re.compile(r"^```(?P<language>\w+)\n(?P<text>.*?)^```$|(?P<commands>(?:^ {4}\S[^\n]*\n)+)", re.M | re.S)

Rows = dict[tuple[str, int], Any]
"""Rows by table and key."""


class Shop(NamedTuple):
    """The tutorial's databases and its folder."""

    shop: str
    warehouse: str
    folder: Path

    def follow(self, say: Callable[[str], object]) -> None:
        """Follow the page's instructions in order."""
        urls = iter((self.shop, self.warehouse, self.shop))
        for block in _BLOCK.finditer(PAGE.read_text(encoding="utf-8")):
            if block["commands"]:
                for command in re.findall(r"^ {4}(.+)$", block["commands"], re.M):
                    say(f"$ {command}")
                    say(self._run(command))
            elif block["language"] == "sql":
                say(block["text"])
                with psycopg.connect(next(urls), autocommit=True) as connection:
                    connection.execute(block["text"].encode())
            else:
                (self.folder / "pipelines").mkdir(parents=True)
                (self.folder / "pipelines" / "shop.yaml").write_text(block["text"], encoding="utf-8")

    def _run(self, command: str) -> str:
        own = {"SHOP_URL": self.shop, "WAREHOUSE_URL": self.warehouse, "CI": "true", "PYTHONPATH": str(ROOT)}
        path = os.pathsep.join((str(Path(sys.executable).parent), os.environ["PATH"]))
        ran = subprocess.run(
            command.split(),
            cwd=self.folder,
            env={**os.environ, **own, "PATH": path},
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            timeout=300,
            check=False,
        )
        if ran.returncode:
            raise SystemExit(f"{command} failed:\n{ran.stdout}")
        return ran.stdout

    @staticmethod
    def rows(url: str) -> Rows:
        """Return the contents of a database."""
        with psycopg.connect(url, autocommit=True) as connection:
            found = ((table, connection.execute(f"SELECT * FROM {table}".encode()).fetchall()) for table in TABLES)
            return {(table, row[0]): row for table, rows in found for row in rows}

    def history(self) -> Rows:
        """Return the rows that result from the changes in the Delta table, as documents."""
        rows: Rows = {}
        for change in sorted(self._changes(), key=_at):
            rows.pop((change["table"], change["was"]), None)
            if change["operation"] != "delete":
                rows[change["table"], change["id"]] = json.loads(change["row"])
        return rows

    def _changes(self) -> Iterator[dict[str, Any]]:
        yield from DeltaTable(str(self.folder / "history")).to_pyarrow_table().to_pylist()

    def documents(self) -> Rows:
        """Return the shop's rows as the source emits them, except for times, which a database formats differently."""
        return {name: _plain(row) for name, row in self.rows(self.shop).items()}


def _at(change: dict[str, Any]) -> tuple[int, int]:
    """Return the sort key of a change: copied rows first, then changes by their place in the WAL."""
    found = re.fullmatch(r"([0-9A-F]+)/([0-9A-F]+)/(\d+)", change["at"])
    return (0, 0) if found is None else (int(found[1], 16) << 32 | int(found[2], 16), int(found[3]))


def _plain(row: tuple[Any, ...]) -> list[str]:
    return [str(value) for value in row[:3]]


def compare(tutorial: Shop) -> list[str]:
    """Return the copies that differ from the shop."""
    shop = tutorial.rows(tutorial.shop)
    history = {name: [str(value) for value in row.values()][:3] for name, row in tutorial.history().items()}
    flaws = ["the warehouse"] if tutorial.rows(tutorial.warehouse) != shop else []
    return flaws + (["the history"] if history != tutorial.documents() else [])


def main(folder: str) -> None:
    """Run the tutorial in a separate folder, which is emptied first."""
    place = Path(folder).resolve()
    shutil.rmtree(place, ignore_errors=True)
    place.mkdir(parents=True)
    with closing(PostgresServer(installations()[0])) as server:
        tutorial = Shop(server.create_database(), server.create_database(), place)
        tutorial.follow(print)
        flaws = compare(tutorial)
        if flaws:
            raise SystemExit(f"not equal to the shop: {', '.join(flaws)}")
        print(f"{len(tutorial.rows(tutorial.shop))} rows: the warehouse and the history equal the shop")


if __name__ == "__main__":
    main(*sys.argv[1:])
