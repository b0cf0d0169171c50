"""The configurations: with all rules, and with one rule missing. Each explores one corner, with several faults."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from model.case import Case
from model.protocol.model import ProtocolModel
from model.protocol.rules import Rule, Variant
from model.protocol.state import Config

Settings = dict[str, Any]
_N = "d n d d"


def _at(settings: Settings | None = None, /, **budget: int) -> Settings:
    """Return settings with the faults that may happen."""
    return {**(settings or {}), "budget": budget}


def _kind(kind: str, **more: Any) -> Settings:
    return {"destinations": (kind,), "queue": kind, **more}


def _named(records: tuple[int, ...], **more: Any) -> Settings:
    """One step of these records, for destinations that name all that they refuse."""
    return {"names": True, "records": records, "batch": max(records), **more}


_FIXED: dict[str, Settings] = {
    "pg 2 crashes flip": _at({"verdicts": _N, "flipped": "n d d f"}, crash=2, flip=1),
    "file takeover crash flip": _at(_kind("file", verdicts=_N, flipped="d d n d"), crash=1, freeze=1, flip=1),
    "file+pg takeover crash flip": _at(
        {"destinations": ("file", "pg"), "queue": "file", "verdicts": "d n a d", "flipped": "d d d n"},
        crash=1, freeze=1, flip=1,
    ),
    "folder takeover lose flip": _at(_kind("folder", flipped="n d d d"), freeze=1, lose=1, flip=1),
    "pg takeover lose flip": _at(_kind("pg", flipped="n d d d"), freeze=1, lose=1, flip=1),
    "file takeover lose flip": _at(_kind("file", flipped="n d d d"), freeze=1, lose=1, flip=1),
    "file crash lose flip": _at(_kind("file", flipped="n d d d"), crash=2, lose=1, flip=1),
    "lose flip window": _at(
        {"verdicts": _N, "flipped": "n n d n", "window": 4, "threshold": 2}, crash=2, lose=1, flip=1
    ),
    "pg errors takeover": _at(error=2, freeze=1),
    "pg errors crash": _at({"queue": "folder"}, error=3, crash=1),
    "folder errors takeover": _at({"destinations": ("folder",)}, error=2, freeze=1, crash=1),
    "2 dests rejections": _at({"destinations": ("pg", "pg"), "records": (2,)}, error=4),
    "2 dests rejections crash file dlq": _at(
        {"destinations": ("pg", "folder"), "queue": "file", "records": (2,)}, error=2, freeze=1
    ),
    "nack and rejection": _at({"records": (3,), "batch": 3, "verdicts": "n d d"}, error=2, crash=1),
    "window rejections mif2": _at(
        {"records": (4,), "verdicts": "d d n d", "window": 3, "threshold": 1, "in_flight": 2},
        error=2, crash=1, restart=1,
    ),
    "threshold flip crash restart": _at(
        _kind("file", verdicts="d n n d", flipped="n d d n", window=3, threshold=1), crash=2, flip=1, restart=1
    ),
    "threshold mif3 crash": _at(
        {"records": (5,), "batch": 1, "verdicts": "d d n d n", "flipped": "d n n d d", "window": 3, "threshold": 1,
         "in_flight": 3},
        crash=2, flip=1, restart=1,
    ),
    "default window mif2 crash": _at({"batch": 1, "verdicts": _N, "window": 1, "in_flight": 2}, crash=2),
    "mif2 takeover stop": _at(
        {"destinations": ("folder",), "queue": "file", "records": (4,), "batch": 1, "verdicts": _N, "in_flight": 2},
        crash=1, freeze=1, stop=1, restart=1,
    ),
    "mif2 two zombies": _at({"records": (3,), "batch": 1, "verdicts": "d n d", "in_flight": 2}, freeze=2),
    "two zombies file": _at(_kind("file", records=(4,), verdicts=_N, flipped="d d d n"), freeze=2, flip=1),
    "rotation": _at(gone=1, crash=2, lose=1, restart=1),
    "rewind zombie": _at({"records": (2,), "batch": 1}, freeze=1, rewind=1),
    "rewind two": _at({"destinations": ("pg", "folder"), "verdicts": _N}, crash=1, rewind=1),
    "direct alo": _at(
        {"destinations": ("direct", "pg"), "strategy": "at-least-once", "records": (2,)}, error=1, crash=1, freeze=1
    ),
    "direct alo window flip lose": _at(
        {"destinations": ("direct",), "queue": "file", "strategy": "at-least-once", "verdicts": _N,
         "flipped": "n d d d", "window": 3, "threshold": 1},
        error=2, crash=1, lose=1, flip=1, restart=1,
    ),
    "amo file takeover": _at(
        _kind("file", strategy="at-most-once", verdicts=_N, records=(4,)), crash=1, freeze=1
    ),
    "amo direct errors": _at(
        {"destinations": ("direct", "pg"), "queue": "direct", "strategy": "at-most-once", "records": (4,)},
        error=1, crash=1, freeze=1,
    ),
    "folder by rename": _at(
        {"destinations": ("folder",), "records": (2,), "flipped": "n d", "variants": frozenset({Variant.RENAME})},
        crash=2, freeze=1, flip=1,
    ),
    "nack then rejection of its copy": _at(
        {"destinations": ("pg", "folder"), "queue": "file", "records": (2,), "verdicts": "a d"}, error=3, crash=1
    ),
    "bulk error only unwritten pg": _at(
        {"records": (2,), "variants": frozenset({Variant.NEVER_WRITTEN})}, error=2, freeze=1, crash=1
    ),
    "bulk error only unwritten folder": _at(
        {"destinations": ("folder",), "queue": "file", "records": (2,), "variants": frozenset({Variant.NEVER_WRITTEN})},
        error=2, freeze=1,
    ),
    "planned anew without zombies": _at(
        {"destinations": ("file", "pg"), "queue": "folder", "records": (3,), "batch": 3, "verdicts": "d d n",
         "flipped": "n d d", "window": 4, "threshold": 1, "variants": frozenset({Variant.MAY_REDECIDE})},
        crash=2, lose=1, flip=1,
    ),
    "six records": _at(
        {"destinations": ("pg", "folder"), "queue": "file", "records": (3, 3), "verdicts": "d n d d a d",
         "flipped": "d d d n d d", "window": 4, "threshold": 2},
        crash=1, freeze=1, flip=1,
    ),
    "six records mif2": _at(
        {"queue": "file", "records": (3, 3), "batch": 1, "verdicts": "d n d d a d", "flipped": "d d d n n d",
         "window": 4, "threshold": 1, "in_flight": 2},
        crash=1, freeze=1, flip=1,
    ),
    "six records errors": _at(
        {"destinations": ("folder",), "records": (6,), "batch": 3, "verdicts": "d n d d d d",
         "flipped": "d d d n d d", "window": 3, "threshold": 1, "in_flight": 2},
        crash=1, error=2, flip=1, restart=1,
    ),
    "named pg takeover": _at(_named((3,)), error=2, freeze=1),
    "named pg crash": _at(_named((3,), queue="file"), error=2, crash=2),
    "named folder file dlq takeover": _at(_named((3,), destinations=("folder",), queue="file"), error=2, freeze=1),
    "named pg takeover crash": _at(_named((2,), queue="folder"), error=2, freeze=1, crash=1),
    "named pg two takeovers": _at(_named((2,)), error=1, freeze=2),
    "named 2 dests": _at(_named((2,), destinations=("pg", "folder")), error=2, crash=1),
    "named and nack": _at(_named((3,), verdicts="d n d"), error=3, crash=1),
    "named window restart": _at(_named((3,), queue="file", window=3, threshold=1), error=3, crash=1, restart=1),
    "named window two steps": _at(
        {"names": True, "records": (4,), "window": 3, "threshold": 1}, error=2, crash=1, restart=1
    ),
    "named four takeover": _at(_named((4,)), error=1, freeze=1),
    "power cut file folder": _at(
        {"destinations": ("file", "folder"), "queue": "file", "verdicts": _N}, power=1, crash=1
    ),
}  # fmt: skip

_SHORT = frozenset(
    {
        "pg 2 crashes flip", "file takeover crash flip", "folder takeover lose flip", "file crash lose flip",
        "lose flip window", "pg errors takeover", "nack and rejection", "window rejections mif2",
        "threshold flip crash restart", "default window mif2 crash", "rotation", "rewind zombie",
        "named and nack", "named window restart", "named window two steps",
        "amo file takeover", "power cut file folder",
    }
)  # fmt: skip
"""The small ones."""

_MUTANTS: list[tuple[Rule, str, Settings]] = [
    (
        Rule.PREPARE,
        "record 2 in consumer 1 but decided 'd'",
        _at({"verdicts": _N, "flipped": "n d d d"}, crash=2, flip=1),
    ),
    (Rule.REACK, "final (idle) with source not acked", _at(crash=1)),
    (Rule.EPOCH, "owner must read records it already acked", _at({"verdicts": _N}, freeze=1)),
    (Rule.NO_APPEND, "record 1 twice in destination 0", _at(_kind("file"), crash=1)),
    (Rule.NO_APPEND, "record 1 twice in destination 0", _at(_kind("file"), freeze=1)),
    (
        Rule.CUT_VOID_FIRST,
        "owner must read records it already acked",
        _at(
            {"records": (4,), "batch": 4, "verdicts": "d n n d", "flipped": "d n d d", "window": 3, "threshold": 1},
            flip=1, crash=2, restart=1,
        ),
    ),
    (
        Rule.CUT_VOIDS_LATER,
        "record 4 acked without a decision",
        _at(
            {"records": (5,), "batch": 1, "verdicts": "d d n n d", "window": 3, "threshold": 1, "in_flight": 3},
            crash=1, restart=1,
        ),
    ),
    (
        Rule.DIGEST,
        "record 1 in consumer 2 but decided 'd'",
        _at({"destinations": ("pg", "pg"), "verdicts": _N, "flipped": "n d d d"}, crash=2, lose=1, flip=1),
    ),
    (Rule.GENERATION, "record 101 acked but missing in consumer 0", _at({"records": (2,)}, rewind=1)),
    (
        Rule.RESOLVE_IN_ORDER,
        "threshold not obeyed over the history",
        _at({"records": (4,), "verdicts": "d d d n", "window": 4, "threshold": 1, "in_flight": 2}, error=2),
    ),
    (
        Rule.RESOLVE_IN_ORDER,
        "threshold not obeyed over the history",
        _at({"records": (4,), "verdicts": "d d n d", "window": 3, "threshold": 1, "in_flight": 2}, error=2),
    ),
    (
        Rule.TOKEN,
        "record 1 acked but missing in consumer 0",
        _at({"records": (2,), "flipped": "n d"}, freeze=1, flip=1),
    ),
    (
        Rule.TOKEN,
        "record 2 acked but missing in consumer 0",
        _at(_kind("file", records=(2,), flipped="n d"), freeze=1, flip=1),
    ),
    (Rule.HASH, "record 1 twice in destination 0", _at(crash=1)),
    (
        Rule.ONE_NACK,
        "record 1 twice in dead letters 2",
        _at({"destinations": ("pg", "pg"), "queue": "file", "records": (2,)}, error=4),
    ),
    (Rule.CLAIM_CHILD, "record 1 in consumer 0 but decided 'a'", _at({"records": (2,)}, error=2, freeze=1)),
    (
        Rule.CLAIM_CHILD,
        "record 1 in consumer 0 but decided 'a'",
        _at({"destinations": ("folder",), "queue": "file", "records": (2,)}, error=2, freeze=1),
    ),
    (Rule.NEVER_ANEW, "record 1 published in 0 before any decision", _FIXED["folder takeover lose flip"]),
    (Rule.REACK_FIRST, "final (fatal:threshold at 4 (rejected))", _FIXED["window rejections mif2"]),
    (Rule.CLAIM_PARENT, "record 1 twice in destination 0", _FIXED["pg errors takeover"]),
    (Rule.LETTER_HASH, "record 2 acked but missing in consumer 1", _FIXED["nack and rejection"]),
    (Rule.ACK_MONOTONE, "source ack went backwards", _FIXED["file takeover crash flip"]),
    (Rule.ACK_GENERATION, "source acked ahead of the stored position", _FIXED["rewind zombie"]),
    (Rule.CLAIM_FIRST, "record 2 twice in destination 0", _at(_named((3,)), error=2, crash=1)),
    (Rule.BATCH_CLAIMS, "record 1 in consumer 0 but decided 'a'", _at(_named((3,)), error=2, freeze=1)),
    (Rule.BATCH_FOUND, "record 1 in consumer 0 but decided 'a'", _at(_named((3,)), error=2, freeze=1)),
    (Rule.BATCH_WHOLE, "record 1 acked but missing in consumer 1", _at(_named((3,)), error=1, crash=1)),
    (Rule.BATCH_PREFIX, "threshold not obeyed over the history", _at(_named((3,), window=3, threshold=1), error=1)),
    (Rule.CLAIM_PARENT, "record 1 twice in destination 0", _at(_named((3,)), error=2, freeze=1)),
    (Rule.CLAIM_CHILD, "record 1 in consumer 0 but decided 'a'", _at(_named((3,)), error=2, freeze=1)),
    (
        Rule.ONE_NACK,
        "record 1 twice in dead letters 2",
        _at(_named((2,), destinations=("pg", "pg"), queue="file"), error=2),
    ),
    (Rule.ONCE_BASE, "overwrote another record's bytes", _FIXED["amo file takeover"]),
    (Rule.ONCE_NO_RESEND, "record 1 twice in destination 0", _FIXED["amo direct errors"]),
    (Rule.HOLDS_FIRST, "needless fatal stop", _FIXED["folder by rename"]),
    (Rule.FSYNC, "record 1 acked but missing in consumer 0", _FIXED["power cut file folder"]),
]  # fmt: skip

_UNSEEN: list[tuple[Rule, Settings]] = [
    (
        Rule.CUT,
        _at(
            _kind("file", verdicts="d n n d", flipped="n d d n", window=3, threshold=1),
            crash=2, flip=1, freeze=1, restart=1,
        ),
    ),
    (
        Rule.CUT,
        _at(
            {"records": (5,), "verdicts": "d d n d n", "flipped": "d n n d d", "window": 3, "threshold": 1,
             "in_flight": 3},
            crash=2, flip=1, restart=1,
        ),
    ),
    (
        Rule.CUT_VOIDS_LATER,
        _at(
            {"records": (6,), "verdicts": "d d d n n d", "window": 3, "threshold": 1, "in_flight": 3},
            crash=1, restart=1,
        ),
    ),
    (Rule.ONE_NACK, _at({"destinations": ("pg", "pg"), "records": (2,)}, error=4)),
    (
        Rule.FAILURE_VOIDS,
        _at(
            {"records": (4,), "batch": 1, "verdicts": _N, "flipped": "d d n d", "window": 3, "threshold": 1,
             "in_flight": 2},
            error=2, crash=1, flip=1,
        ),
    ),
    (Rule.END_CONNECTIONS, _at({"records": (2,)}, error=2, freeze=1, crash=1)),
    (Rule.LETTERS_FIRST, _at({"verdicts": _N}, crash=2, freeze=1)),
    (Rule.BATCH_NAME, _at(_named((3,)), error=2, freeze=1)),
    (Rule.NEVER_ANEW, _FIXED["planned anew without zombies"]),
]  # fmt: skip
"""Configurations in which a missing rule does no harm: it gives order, or others guard the same."""


def cases() -> Iterator[Case]:
    """Return every case of this model."""
    for name, settings in _FIXED.items():
        yield Case("rules", name, _model(settings), is_short=name in _SHORT)
    named: dict[Rule, int] = {}
    for rule, expected, settings in _MUTANTS:
        yield Case("mutants", _name(named, rule), _model(settings, rule), expected, _is_small(rule))
    for rule, settings in _UNSEEN:
        yield Case("mutants", f"{_name(named, rule)} (no harm here)", _model(settings, rule), is_short=False)


def _name(named: dict[Rule, int], rule: Rule) -> str:
    named[rule] = named.get(rule, 0) + 1
    return f"without {rule}" + (f" ({named[rule]})" if named[rule] > 1 else "")


def _is_small(rule: Rule) -> bool:
    return rule not in (Rule.ACK_MONOTONE, Rule.REACK_FIRST, Rule.HOLDS_FIRST, Rule.ONE_NACK, Rule.ONCE_BASE)


def _model(settings: Settings, without: Rule | None = None) -> ProtocolModel:
    chosen: Settings = {"without": frozenset({without} if without else ()), **settings}
    return ProtocolModel(Config(**chosen))
