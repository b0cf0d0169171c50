"""Inputs of realistic sizes: long records, wide and nested ones, small files, one large file."""

from __future__ import annotations

import json
import random
from collections.abc import Callable
from dataclasses import dataclass
from functools import cache, partial

from benchmarks.data import sound_line

SIZES = "sizes-"
"""Prefix of the names of these measures."""
_BYTES = 200
"""Bytes of a shape per record of the benchmark: 200 MB for a million."""
_LARGE = 20_000_000_000
_USUAL = 100
"""Bytes of a record without additional members."""
_WORDS = "the order was sent from Zürich to “Ana's café” at noon, paid by card, not yet returned"
_COLUMNS = 200
_NESTED = """
address struct<street: string, city: string, geo: struct<lat: double, lon: double>>,
items array<struct<sku: string, quantity: long, price: double, options: struct<colour: string, gift: boolean>>>,
tags array<string>
"""


@dataclass(frozen=True)
class Shape:
    """One kind of input."""

    name: str
    title: str
    size: int = _USUAL
    """Approximate bytes per record."""
    more: Callable[[int], str] | None = None
    """Additional members of record ``i``, as JSON without braces."""
    schema: str = ""
    """Schema of these members, for plain Spark."""
    records_per_file: int = 0
    """0 means all in one file."""
    destinations: int = 1
    budget: int = _BYTES
    """Input bytes per record of the benchmark."""
    is_large: bool = False
    """Whether the size is fixed, regardless of the requested amount."""

    def records(self, wanted: int) -> int:
        """Return the number of records, for a benchmark of ``wanted`` records of the usual size."""
        if self.is_large:
            return _LARGE // self.size
        records = max(self.budget * wanted // self.size, 1)
        return records - records % (self.records_per_file or 1)

    def line(self, i: int) -> str:
        """Return record ``i``."""
        line = sound_line(i)
        return line if self.more is None else f"{line[:-2]},{self.more(i)}}}\n"


@cache
def _text(length: int) -> str:
    """Return lines of a dozen words, each with a character to escape."""
    chosen = random.Random(7).choices(_WORDS.split(), k=length // 3)
    return "\n".join(" ".join(chosen[at : at + 12]) for at in range(0, len(chosen), 12))


def _body(i: int, size: int) -> str:
    # a fourteenth of the bytes are escapes and the rest of long characters
    start, length = i * 37 % size, (size - _USUAL) * 13 // 14
    return f'"body":{json.dumps(_text(2 * size)[start : start + length], ensure_ascii=False)}'


def _wide(i: int) -> str:
    """Return numbers, text and booleans in turn, an eighth of them null."""
    return ",".join(f'"c{n}":{_cell(i, n)}' for n in range(_COLUMNS))


def _cell(i: int, n: int) -> str:
    if (i + n) % 8 == 0:
        return "null"
    return (str(i * n), f'"value {i % 997} of {n}"', f"{(i + n) % 10_000 / 8}", "true" if i % 2 else "false")[n % 4]


def _nested(i: int) -> str:
    items = ",".join(
        f'{{"sku":"S-{(i + n) % 5000}","quantity":{n + 1},"price":{(i + n) % 700 / 4},'
        f'"options":{{"colour":"red","gift":{"true" if n % 2 else "false"}}}}}'
        for n in range(1 + i % 8)
    )
    geo = f'{{"lat":{i % 90}.5,"lon":{i % 180}.25}}'
    address = f'{{"street":"Long street {i % 300}","city":"Lyon","geo":{geo}}}'
    return f'"address":{address},"items":[{items}],"tags":["new","web","{i % 50}"]'


def _long(name: str, size: int) -> Shape:
    return Shape(name.replace(" ", "").lower(), f"records of {name}", size, partial(_body, size=size), "body string")


SHAPES = (
    Shape("100b", "records of 100 B", budget=100),
    _long("1 KB", 1_000),
    _long("10 KB", 10_000),
    _long("100 KB", 100_000),
    Shape(
        "wide",
        f"records of {_COLUMNS} fields",
        3_200,
        _wide,
        ", ".join(f"c{n} {('long', 'string', 'double', 'boolean')[n % 4]}" for n in range(_COLUMNS)),
    ),
    Shape("nested", "nested records", 600, _nested, _NESTED),
    Shape("small-files", "many files of 10 KB", records_per_file=100, budget=100),
    Shape("fan-out", "five destinations", destinations=5, budget=20),
    Shape("20gb-file", "one file of 20 GB", is_large=True),
)
