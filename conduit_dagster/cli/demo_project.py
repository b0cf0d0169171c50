"""The files of the demo: a project of its own, the same at every call."""

from __future__ import annotations

import json
import random
import shutil
from collections.abc import Iterator
from importlib.resources import files
from pathlib import Path
from typing import Final

from conduit_dagster.recovery.errors import FatalError, from_os_error

LINES: Final = 1_000
_SETTINGS: Final = "# all defaults: SQLite and staging under .conduit/, Spark in this process\n"
_MARK: Final = ".made-by-demo"
_CUSTOMERS: Final = ("Ada", "Grace", "Edsger", "Barbara", "Donald", "Leslie")
_STATUSES: Final = ("paid", "paid", "paid", "paid", "open", "cancelled")


def make_project(folder: Path) -> None:
    """Writes the project anew. A folder of that name that the demo did not make is never deleted."""
    try:
        _clear(folder)
        for name in ("in", "pipelines"):
            (folder / name).mkdir(parents=True)
        (folder / _MARK).touch()
        (folder / "conduit.yaml").write_text(_SETTINGS)
        template = files("conduit_dagster.cli").joinpath("templates", "demo.yaml")
        (folder / "pipelines" / "orders.yaml").write_text(template.read_text())
        (folder / "in" / "orders.jsonl").write_text("".join(f"{line}\n" for line in _lines()))
    except OSError as error:
        raise from_os_error(error, "can't write the demo") from error


def _clear(folder: Path) -> None:
    if not folder.exists():
        return
    if not (folder / _MARK).exists():
        raise FatalError(
            f"{folder} is there already, and the demo did not make it",
            code="usage.demo_folder",
            fix="move it away, or run the demo in another folder",
        )
    shutil.rmtree(folder)


def _lines() -> Iterator[str]:
    """Orders: about one in a hundred is not JSON, lacks its customer, or has an amount that is no number."""
    chance = random.Random(7)
    for number in range(1, LINES + 1):
        order: dict[str, object] = {
            "id": number,
            "customer": chance.choice(_CUSTOMERS),
            "amount": f"{chance.randint(100, 99_999) / 100:.2f}",
            "status": chance.choice(_STATUSES),
        }
        yield _spoiled(number, order)


def _spoiled(number: int, order: dict[str, object]) -> str:
    if number % 97 == 0:
        return json.dumps(order)[:-12]
    if number % 89 == 0:
        del order["customer"]
    elif number % 211 == 0:
        order["amount"] = "n/a"
    return json.dumps(order)
