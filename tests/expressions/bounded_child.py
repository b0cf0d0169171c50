"""Evaluate expressions, each in a fork with limits of memory and CPU time: a request and a response per line."""

from __future__ import annotations

import json
import os
import resource
import sys
import time
from pathlib import Path
from typing import Any

import msgspec

from conduit_dagster.expressions import Clock, ExpressionError, compile_condition, compile_expression, compile_template
from conduit_dagster.record import Record

MEMORY = 768 << 20
SECONDS = 16

ITEMS = 20_000
AFTER: dict[str, Any] = {
    "q": '"' * 1_000_000,
    "a": "a" * 1_000_000,
    "ab": "ab" * 500_000,
    "needle": "a" + "b" + "a" * 400_000,
    "wide": "ΐ" * 300_000,
    "control": "\x01" * 500_000,
    "many": "".join(map(chr, range(0x4E00, 0x9F00))) + "a",
    "l": list(range(ITEMS)),
    "w": ["ab" * 20 + "aa"] * ITEMS,
    "docs": [{"id": i, "t": "x" * 40, "tags": ["a", "b"]} for i in range(5_000)],
    "lists": [[0] * 200 + [i] for i in range(2_000)],
    "n": 10**4200,
    "m": 10**2100 + 7,
}
RECORD = Record(1, {"m": "x" * 100_000}, AFTER, None, None, "create")
COMPILERS = {
    "expression": lambda text: compile_expression(text, Clock()),
    "condition": lambda text: compile_condition(text, Clock()),
    "template": compile_template,
}


def _virtual() -> int:
    return int(Path("/proc/self/statm").read_text(encoding="utf-8").split()[0]) * resource.getpagesize()


def evaluate(kind: str, text: str) -> str:
    """The kind of the result, with its length as JSON."""
    try:
        function = COMPILERS[kind](text)
    except ExpressionError:
        return "refused"
    try:
        result = function(RECORD)
    except MemoryError:
        return "out of memory"
    except Exception as error:  # noqa: BLE001  # whatever it is, it is the record's nack
        return f"failed {type(error).__name__}"
    return f"made {len(msgspec.json.encode(result))}"


def forked(kind: str, text: str) -> str:
    read, write = os.pipe()
    child = os.fork()
    if child == 0:
        size = _virtual() + MEMORY
        resource.setrlimit(resource.RLIMIT_AS, (size, size))
        resource.setrlimit(resource.RLIMIT_CPU, (SECONDS, SECONDS))
        outcome = "died"
        try:
            outcome = evaluate(kind, text)
        except MemoryError:
            outcome = "out of memory"
        finally:
            os.write(write, outcome.encode())
            os._exit(0)
    os.close(write)
    with os.fdopen(read, "rb") as answer:
        outcome = answer.read().decode()
    _, status, usage = os.wait4(child, 0)
    signalled = f"killed by signal {os.WTERMSIG(status)}" if os.WIFSIGNALED(status) else outcome
    return f"{signalled} {usage.ru_utime + usage.ru_stime:.2f}"


def main() -> None:
    print("ready", flush=True)
    for line in sys.stdin:
        began = time.monotonic()
        outcome = forked(*json.loads(line))
        print(json.dumps([outcome, time.monotonic() - began]), flush=True)


if __name__ == "__main__":
    main()
