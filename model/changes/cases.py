"""The configurations: the protocol as it was, with its rules, and with one rule missing."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from model.case import Case
from model.changes.model import ChangesModel
from model.changes.rules import ALL, AS_IT_WAS, Rule
from model.changes.state import Config, File

_LOGGED = File(logged=True)
Settings = dict[str, Any]


def _code(first: str = "", second: str = "") -> tuple[frozenset[str], ...]:
    """Return the records concerned, for the first and the second version of the code."""
    return frozenset(first.split()), frozenset(second.split())


# -- the findings of the audit ------------------------------------------------------------------------------------

_FINDINGS: dict[str, tuple[str, Settings]] = {
    "P1 from the log, under a prepared step": (
        "lost: A0 at late",
        {
            "file": _LOGGED,
            "edits": ("add late from log",),
            "crash_in": ("prepared",),
            "budget": {"crash": 1, "edit": 1},
        },
    ),
    "P2 from the log, under a planned step": (
        "order: A0 after A1 at late",
        {"file": _LOGGED, "edits": ("add late from log",), "crash_in": ("planned",), "budget": {"crash": 1, "edit": 1}},
    ),
    "P3 compaction before the newcomer has read": (
        "lost: A0 at late",
        {
            "file": _LOGGED,
            "edits": ("add late from log",),
            "crash_in": ("planned",),
            "budget": {"crash": 1, "edit": 1, "compact": 1},
            # P2 comes first in every such run
            "ignored": ("order",),
        },
    ),
    "P4 units A, B, A, C": (
        "acked but lost: C0 at out",
        {"edits": ("unit A", "unit B", "unit C"), "budget": {"edit": 3}},
    ),
    "P5 unit B and back under a prepared step": (
        "twice: A0 at out",
        {"edits": ("unit A", "unit B"), "crash_in": ("prepared",), "budget": {"edit": 2, "crash": 1}},
    ),
    "P6 replay after start-from left the file": (
        "twice: A1 at late",
        {
            "file": _LOGGED,
            "edits": ("code 1", "add late from log", "start-from leaves", "replay"),
            "budget": {"edit": 4},
            "nacked": _code("A1"),
        },
    ),
    "P7 refused at publishing after the code changed": (
        "wrong letter: holds A1, but A2 was refused",
        {
            "batch": 3,
            "edits": ("code 1",),
            "crash_in": ("prepared",),
            "budget": {"edit": 1, "crash": 1},
            "refused": frozenset({"A2"}),
            "filtered": _code("A1", "A2"),
        },
    ),
    "P8 refused at publishing after the data is gone": (
        "stuck: source gone",
        {
            "edits": ("data gone",),
            "crash_in": ("prepared",),
            "budget": {"edit": 1, "crash": 1},
            "refused": frozenset({"A1"}),
        },
    ),
    "P13 unit B and back with log: records": (
        "twice: A0 at out",
        {"file": _LOGGED, "edits": ("unit A", "unit B"), "budget": {"edit": 2}},
    ),
    "a source that fails in the middle of a range": ("no progress", {"unreadable": {"A": 2}}),
    "unit B and log: positions in one edit": (
        "acked but lost: B0 at out",
        {"file": _LOGGED, "edits": ("unit B, log off",), "budget": {"edit": 1}},
    ),
    "log on and off, offsets equal to positions": (
        "acked but lost: A2 at out",
        {
            "units": {"A": 3, "B": 2},
            "edits": ("log on", "log off", "unit A", "unit B"),
            "budget": {"edit": 4, "crash": 1},
            "crash_in": ("none",),
        },
    ),
}

_MENDED = {
    # this one lies behind two others
    "log on and off, offsets equal to positions": frozenset({Rule.SWITCH_BEFORE_UNIT, Rule.UNITS_REMEMBERED}),
}

# -- every kind of edit, with all rules ---------------------------------------------------------------------------

_LATE_EDITS = ("add late", "add late from log", "start-from leaves", "remove late")
_ANY = (*_LATE_EDITS, "unit A", "unit B", "code 1", "log on", "log off", "unit B, log off", "data gone", "replay")

_EDITED: dict[str, Settings] = {
    "units change": {
        "units": {"A": 2, "B": 2, "C": 1},
        "edits": ("unit A", "unit B", "unit C", "code 1"),
        "nacked": _code("A1"),
        "budget": {"edit": 3, "crash": 1, "lose": 1},
    },
    "units change, logged": {
        "file": _LOGGED,
        "units": {"A": 2, "B": 2, "C": 1},
        "edits": ("unit A", "unit B"),
        "budget": {"edit": 3, "crash": 1, "compact": 1},
    },
    "a destination comes and goes": {
        "units": {"A": 3, "B": 1},
        "edits": ("add late", "remove late", "unit A", "unit B"),
        "budget": {"edit": 3, "crash": 1},
    },
    "a destination comes and goes, logged": {
        "file": _LOGGED,
        "units": {"A": 3},
        "edits": _LATE_EDITS,
        "budget": {"edit": 3, "crash": 1, "compact": 1},
    },
    "a destination and units": {
        "file": _LOGGED,
        "units": {"A": 2, "B": 2},
        "edits": ("add late from log", "remove late", "unit A", "unit B"),
        "nacked": _code("A1"),
        "budget": {"edit": 3, "crash": 1, "compact": 1},
    },
    "the log comes and goes": {
        "units": {"A": 3, "B": 2},
        "edits": ("log on", "log off", "unit A", "unit B", "unit B, log off"),
        "budget": {"edit": 3, "crash": 1},
    },
    "the log and a destination": {
        "units": {"A": 2},
        "edits": ("log on", "log off", "add late from log", "remove late"),
        "budget": {"edit": 4, "crash": 1, "compact": 1},
    },
    "replays of what failed": {
        "file": _LOGGED,
        "units": {"A": 2},
        "edits": ("code 1", "replay", *_LATE_EDITS),
        "nacked": _code("A1"),
        "budget": {"edit": 4, "crash": 1},
    },
    "refused at publishing": {
        "edits": ("code 1", "data gone", "unit B", "replay"),
        "refused": frozenset({"A1"}),
        "filtered": _code("A0", "A1"),
        "budget": {"edit": 2, "crash": 1, "lose": 1},
    },
    "refused at publishing, logged": {
        "file": _LOGGED,
        "units": {"A": 2, "B": 1},
        "edits": ("code 1", "data gone", "unit B", "add late from log", "replay"),
        "refused": frozenset({"A1"}),
        "filtered": _code("A0", "A1"),
        "budget": {"edit": 2, "crash": 1, "lose": 1},
    },
    "a source that fails": {
        "unreadable": {"A": 2},
        "edits": ("unit A", "unit B", "code 1"),
        "budget": {"edit": 2, "crash": 1, "restart": 1},
    },
    "a source that fails, logged": {
        "file": _LOGGED,
        "unreadable": {"A": 2},
        "edits": ("unit A", "unit B", "add late from log"),
        "budget": {"edit": 2, "crash": 1, "restart": 1},
    },
    "a gap in the log": {
        "file": _LOGGED,
        "units": {"A": 3, "B": 1},
        "edits": ("add late from log", "unit B"),
        "budget": {"edit": 2, "crash": 1, "gap": 1},
    },
}

_LONG: dict[str, Settings] = {
    "units change, four edits": _EDITED["units change"] | {"budget": {"edit": 4, "crash": 1, "lose": 1}},
    "a destination comes and goes, two crashes": (
        _EDITED["a destination comes and goes"] | {"budget": {"edit": 4, "crash": 2}}
    ),
    "a destination comes and goes, logged, two crashes": (
        _EDITED["a destination comes and goes, logged"] | {"budget": {"edit": 4, "crash": 2, "compact": 1}}
    ),
    "the log comes and goes, four edits": _EDITED["the log comes and goes"] | {"budget": {"edit": 4, "crash": 1}},
    "replays, five edits, two crashes": (
        _EDITED["replays of what failed"] | {"nacked": _code("A0", "A1"), "budget": {"edit": 5, "crash": 2}}
    ),
    "refused, three edits, two crashes": (
        _EDITED["refused at publishing"] | {"budget": {"edit": 3, "crash": 2, "lose": 1}}
    ),
    "a source that fails, two crashes": (
        _EDITED["a source that fails, logged"] | {"budget": {"edit": 2, "crash": 2, "restart": 1, "compact": 1}}
    ),
    "any three edits": {
        "units": {"A": 2, "B": 1},
        "edits": _ANY,
        "nacked": _code("A1"),
        "budget": {"edit": 3, "crash": 1, "compact": 1},
    },
    "any three edits, logged": {
        "file": _LOGGED,
        "units": {"A": 2, "B": 1},
        "edits": _ANY,
        "nacked": _code("A1"),
        "refused": frozenset({"A0"}),
        "budget": {"edit": 3, "crash": 1, "lose": 1},
    },
    "any four edits, logged, two crashes": {
        "file": _LOGGED,
        "units": {"A": 2, "B": 1},
        "sizes": False,
        "edits": _ANY,
        "nacked": _code("A1"),
        "budget": {"edit": 4, "crash": 2, "compact": 1},
    },
    "any four edits": {
        "units": {"A": 2, "B": 1},
        "edits": _ANY,
        "nacked": _code("", "A1"),
        "refused": frozenset({"A0"}),
        "budget": {"edit": 4, "crash": 1, "lose": 1},
    },
}

# -- one rule missing ---------------------------------------------------------------------------------------------

_TWO_LIVES: Settings = {
    "units": {"A": 2},
    "edits": ("add late", "remove late"),
    "budget": {"edit": 3, "crash": 2},
}
_MUTANTS: list[tuple[Rule, str, Settings]] = [
    (Rule.FINISH_FIRST, "lost: A0 at late", _FINDINGS["P1 from the log, under a prepared step"][1]),
    (Rule.FINISH_FIRST, "order: A0 after A1 at late", _FINDINGS["P2 from the log, under a planned step"][1]),
    (Rule.FINISH_FIRST, "twice: A0 at out", _FINDINGS["P5 unit B and back under a prepared step"][1]),
    (Rule.RETIRE_VOIDS, "lost: A0 at late", _TWO_LIVES),
    (
        Rule.RETIRE_LETTERS,
        "twice: A0 at late",
        {
            "file": _LOGGED,
            "units": {"A": 1},
            "edits": ("code 1", "replay", "add late", "add late from log", "remove late"),
            "nacked": _code("A0"),
            "budget": {"edit": 5, "crash": 1},
        },
    ),
    (Rule.REFUSE_GAP, "acked but lost: A0 at out", _EDITED["a gap in the log"]),
    (
        Rule.PROMISE_HOLDS,
        "stuck: gap in the log",
        {
            "file": _LOGGED,
            "units": {"A": 3},
            "edits": ("add late", "add late from log", "remove late"),
            "budget": {"edit": 3, "crash": 1, "compact": 1},
        },
    ),
    (Rule.HIGH_WATER, "acked but lost: C0 at out", _FINDINGS["P4 units A, B, A, C"][1]),
    (Rule.UNITS_REMEMBERED, "twice: A0 at out", _FINDINGS["P13 unit B and back with log: records"][1]),
    (Rule.KEEP_PROMISE, "twice: A1 at late", _FINDINGS["P6 replay after start-from left the file"][1]),
    (
        Rule.HASH_NAMES_LOG,
        "acked but lost: A2 at out",
        _FINDINGS["log on and off, offsets equal to positions"][1],
    ),
    (
        Rule.STAGED_LETTERS,
        "wrong letter: holds A1, but A2 was refused",
        _FINDINGS["P7 refused at publishing after the code changed"][1],
    ),
    (Rule.STAGED_LETTERS, "stuck: source gone", _FINDINGS["P8 refused at publishing after the data is gone"][1]),
    (Rule.FAILURE_CUTS, "no progress", _FINDINGS["a source that fails in the middle of a range"][1]),
    (Rule.SWITCH_BEFORE_UNIT, "acked but lost: B0 at out", _FINDINGS["unit B and log: positions in one edit"][1]),
    (Rule.ACK_AGAIN, "idle, but the source is not acked", _FINDINGS["P5 unit B and back under a prepared step"][1]),
]
_COMPACTED: Settings = _FINDINGS["P1 from the log, under a prepared step"][1] | {
    "budget": {"crash": 1, "edit": 1, "compact": 1}
}


def cases() -> Iterator[Case]:
    """Return every case of this model."""
    for name, (expected, settings) in _FINDINGS.items():
        yield Case("before", name, _model(AS_IT_WAS | _MENDED.get(name, frozenset()), settings), expected)
    for name, (_, settings) in _FINDINGS.items():
        yield Case("rules", name, _model(ALL, settings))
    for name, settings in _EDITED.items():
        yield Case("rules", name, _model(ALL, settings))
    for name, settings in _LONG.items():
        yield Case("rules", name, _model(ALL, settings), is_short=False)
    for number, (rule, expected, settings) in enumerate(_MUTANTS):
        again = sum(other == rule for other, _, _ in _MUTANTS[:number])
        name = f"without {rule}" + (f" ({again + 1})" if again else "")
        yield Case("mutants", name, _model(ALL - {rule}, settings), expected)
    # two rules keep compaction off a newcomer's entries; here each of them is enough alone
    pair = frozenset({Rule.DECISION_OFFSETS, Rule.PROMISE_HOLDS})
    yield Case("mutants", "without offsets-of-decision and promise-holds-compaction", _model(ALL - pair, _COMPACTED),
               "stuck: gap in the log")  # fmt: skip
    for rule in sorted(pair):
        yield Case("mutants", f"without {rule}, kept by the other one", _model(ALL - {rule}, _COMPACTED))


def _model(rules: frozenset[Rule], settings: Settings) -> ChangesModel:
    return ChangesModel(Config(rules=rules, **settings))
