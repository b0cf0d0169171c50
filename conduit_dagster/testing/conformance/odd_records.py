"""Records as no author thinks of them."""

from __future__ import annotations

from typing import Any, Final

from conduit_dagster.record import COLLECTION, OPERATIONS, Data, Record

_DEPTH: Final = 100


def odd_records() -> list[Record]:
    """Return edge-case records: all operations, missing and raw parts, deep documents, numbers beyond 64 bits."""
    deep: dict[str, Any] = {"id": 1}
    for _ in range(_DEPTH):
        deep = {"in": deep}
    names = {"a.b": 1, "with space": 2, 'quo"te': 3, "é": 4, "": 5, "$x": 6}
    values = {"big": 2**70, "small": -(2**70), "nan": float("nan"), "inf": float("inf"), "none": None, "yes": True}
    payloads: list[Data] = [
        None, {}, {"id": 1, "name": "a"}, {"id": None, "name": None}, {"id": "1", "name": 2}, {"id": [1, {"x": None}]},
        names, values, deep, {"name": "\0\ud7ff\U0001f600\n\t\\"}, {"name": "x" * 5_000},
        b"", b"raw", b"\xff\xfe\x00", b'{"id": 1}', b"[1, 2]", b"null", b"{", b"NaN",
    ]  # fmt: skip
    records = [Record(str(place), {"m": "x"}, payload) for place, payload in enumerate(payloads)]
    records += [Record(f"o{o}", {}, {"id": 1}, {"id": 1}, {"id": 0}, o) for o in OPERATIONS]
    records += [
        Record("delete", {COLLECTION: "users"}, None, {"id": 1}, {"id": 1, "name": "a"}, "delete"),
        Record("raw key", {}, {"id": 1}, b"\xff"),
        Record("only before", {}, None, None, b"raw", "update"),
        Record("", {"": "", "é": "\n"}, {"id": 1}),
    ]
    return records
