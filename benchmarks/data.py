"""Generated input: JSON lines of about 100 bytes with six fields, 0.12 % of them broken."""

from __future__ import annotations

from pathlib import Path

_CITIES = ("Zagreb", "Lyon", "Oslo", "Porto", "Gent")
SCHEMA = "id long, name string, age long, city string, amount double, note string"


def generate(path: Path, records: int) -> Path:
    """The file with this many lines; made once."""
    if not path.exists():
        partial = path.with_suffix(".partial")
        with partial.open("w") as file:
            file.writelines(_line(i) for i in range(records))
        partial.rename(path)
    return path


def _line(i: int) -> str:
    if i % 800 == 799:
        return f"not json at all {i}\n"
    amount = (i % 100_000) / 7
    return (
        f'{{"id":{i},"name":"user-{i % 9973}","age":{i % 90},"city":"{_CITIES[i % 5]}",'
        f'"amount":{amount:.2f},"note":"some text here"}}\n'
    )


def sound(records: int) -> int:
    """How many of so many lines are JSON."""
    return records - records // 800
