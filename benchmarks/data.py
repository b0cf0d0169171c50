"""Generated input: JSON lines of about 100 bytes with six fields, 0.12 % of them broken; and the resulting rows."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import LiteralString

_CITIES = ("Zagreb", "Lyon", "Oslo", "Porto", "Gent")
_BROKEN = 800
SCHEMA = "id long, name string, age long, city string, amount double, note string"
COLUMNS: dict[str, LiteralString] = {
    "id": "bigint",
    "fullname": "text",
    "age": "bigint",
    "city": "text",
    "amount": "double precision",
    "cents": "double precision",
}
"""Columns of the rows that the work produces from the lines, with PostgreSQL's types."""


def generate(folder: Path, records: int) -> Path:
    """Return the file with this many lines; created once."""
    return once(folder / f"in-{records}.jsonl", records, _line)


def rendered(folder: Path, records: int) -> Path:
    """Return the same records as COPY text, after the work, without the broken ones; created once."""
    return once(folder / f"in-{records}.copy", records, _row)


def sound(records: int) -> int:
    """Return how many of this many lines are valid JSON."""
    return records - records // _BROKEN


def once(path: Path, records: int, render: Callable[[int], str]) -> Path:
    """Return the file at ``path`` with ``render`` of each number below ``records``; created once."""
    if not path.exists():
        partial = path.with_name(f"{path.name}.partial")
        with partial.open("w") as file:
            file.writelines(render(i) for i in range(records))
        partial.rename(path)
    return path


def sound_line(i: int) -> str:
    """Return line ``i`` without its defect, if it has one."""
    return (
        f'{{"id":{i},"name":"user-{i % 9973}","age":{i % 90},"city":"{_CITIES[i % 5]}",'
        f'"amount":{_amount(i)},"note":"some text here"}}\n'
    )


def _line(i: int) -> str:
    return f"not json at all {i}\n" if _is_broken(i) else sound_line(i)


def _row(i: int) -> str:
    if _is_broken(i):
        return ""
    cents = float(_amount(i)) * 100
    return f"{i}\tuser-{i % 9973}\t{i % 90}\t{_CITIES[i % 5]}\t{float(_amount(i))}\t{cents}\n"


def _is_broken(i: int) -> bool:
    return i % _BROKEN == _BROKEN - 1


def _amount(i: int) -> str:
    return f"{(i % 100_000) / 7:.2f}"
