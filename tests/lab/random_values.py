"""Random values of PostgreSQL's types, as SQL literals, from a seeded generator."""

from __future__ import annotations

import json
from collections.abc import Callable
from random import Random

Literal = Callable[[Random], str]
_LETTERS = "abc é😀\"'\\\t\n,{}()"
_SECONDS = ("0", "-3", "1.5", "0.000001")


def quoted(text: str) -> str:
    """Return text as an SQL literal."""
    return "'" + text.replace("'", "''") + "'"


def words(rng: Random) -> str:
    """Return short text, sometimes with special characters."""
    return quoted("".join(rng.choices(_LETTERS, k=rng.randrange(8))))


def large(rng: Random) -> str:
    """Return text that is mostly stored apart from its row (TOAST)."""
    return f"repeat({quoted(rng.choice('xyz'))}, {rng.choice((3, 2_500, 9_000))})"


def _digits(rng: Random) -> str:
    return f"{rng.choice(('', '-'))}{rng.randrange(10 ** rng.randrange(1, 25))}.{rng.randrange(10**6)}"


def _day(rng: Random) -> str:
    return f"{rng.randrange(1, 9999):04}-{rng.randrange(1, 13):02}-{rng.randrange(1, 29):02}"


def _hour(rng: Random) -> str:
    return f"{rng.randrange(24):02}:{rng.randrange(60):02}:{rng.randrange(60):02}.{rng.choice((0, 5, 120, 654321))}"


def _span(rng: Random) -> str:
    signed = [f"{rng.randrange(-20, 20)} {unit}" for unit in ("years", "mons", "days", "hours", "mins")]
    return quoted(" ".join(rng.sample(signed, rng.randrange(1, 5))) + f" {rng.choice(_SECONDS)} secs")


def _document(rng: Random) -> str:
    inner = {"a": rng.randrange(-5, 5), "b": [None, rng.random(), "é\n"], "c": {}, "d": rng.choice((True, "x", 10**20))}
    return quoted(json.dumps(rng.choice((inner, [], "x", 1, None, {"k": inner})), ensure_ascii=False))


def _list(kind: str, literal: Literal) -> Literal:
    def made(rng: Random) -> str:
        values = [rng.choice(("NULL", literal(rng))) for _ in range(rng.randrange(4))]
        return f"array[{', '.join(values)}]::{kind}[]"

    return made


_SINGLE: dict[str, Literal] = {
    "smallint": lambda rng: str(rng.randrange(-(2**15), 2**15)),
    "integer": lambda rng: str(rng.randrange(-(2**31), 2**31)),
    "bigint": lambda rng: str(rng.randrange(-(2**63), 2**63)),
    "numeric": _digits,
    "numeric(12,3)": lambda rng: str(rng.randrange(-(10**9), 10**9) / 8),
    "real": lambda rng: repr(rng.uniform(-1e6, 1e6)),
    "double precision": lambda rng: rng.choice((repr(rng.uniform(-1e300, 1e300)), "1e22", "'-0'", "5e-324", "'NaN'")),
    "boolean": lambda rng: rng.choice(("true", "false")),
    "text": words,
    "varchar(40)": words,
    "char(12)": words,
    "bytea": lambda rng: rf"'\x{rng.randbytes(rng.randrange(6)).hex()}'",
    "date": lambda rng: quoted(_day(rng)),
    "time": lambda rng: quoted(_hour(rng)),
    "timetz": lambda rng: quoted(_hour(rng) + rng.choice(("+00", "+05:30", "-08"))),
    "timestamp": lambda rng: quoted(f"{_day(rng)} {_hour(rng)}"),
    "timestamptz": lambda rng: quoted(f"{_day(rng)} {_hour(rng)}{rng.choice(('+00', '+05:30', '-08'))}"),
    "interval": _span,
    "uuid": lambda rng: quoted(f"{rng.getrandbits(128):032x}"),
    "json": _document,
    "jsonb": _document,
    "inet": lambda rng: quoted(f"10.{rng.randrange(256)}.0.{rng.randrange(256)}/{rng.randrange(8, 33)}"),
    "int4range": lambda rng: f"int4range({rng.randrange(5)}, {rng.randrange(5, 9)}, '(]')",
    "bit varying(12)": lambda rng: "B'" + "".join(rng.choices("01", k=rng.randrange(1, 13))) + "'",
}
_LISTED = ("integer", "numeric", "text", "date", "timestamptz")
LITERALS: dict[str, Literal] = {**_SINGLE, **{f"{kind}[]": _list(kind, _SINGLE[kind]) for kind in _LISTED}}
"""Literals by type."""
