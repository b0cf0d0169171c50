"""Every command that the documentation shows is run, in one project whose pipelines have the names of the pages.

What it says depends on where the pipelines stand; that it is no mistake of the page is what is asserted: neither the
verb, an option, a value nor the name of something is refused. Pages with a project of their own have their own tests.
"""

from __future__ import annotations

import json
import re
import shlex
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from lab.support import DECODE, Lab, destination, processor, queue, source
from test_docs import commands

from conduit_dagster.cli.main import EXAMPLES

pytestmark = [pytest.mark.slow, pytest.mark.usefixtures("shared_session")]

OWN_TESTS = {
    "csv.md",
    "cdc-tutorial.md",
    "kafka.md",
    "postgres.md",
    "writing-a-connector.md",
    "writing-a-processor.md",
    "README.md",
}
ENDLESS = re.compile(r"^run(?!.*--once)|^top(?!.*--once)|--serve|^run .*--metrics")
"""Run until they are stopped."""
ELSEWHERE = re.compile(r"^spark |^init\b|\b[A-Z]{4,}\b|^pipelines reload")
"""A server, a new project, a placeholder, a running Dagster: tests of their own."""
VERBS = {"pipelines start", "pipelines stop", "positions rewind"}
"""Said of the verb, in the middle of a sentence."""
OF_THE_PAGE = {"validation.failed", "internal.error"}


def _lines() -> Iterator[str]:
    shown = [line for page, line in commands() if page not in OWN_TESTS]
    for line in [*shown, *(line for examples in EXAMPLES.values() for line in examples)]:
        words = shlex.split(line, comments=True)
        ends = [place for place, word in enumerate(words) if word in ("&&", "|", ">")]
        plain = shlex.join(words[: ends[0]] if ends else words)
        if not (ENDLESS.search(plain) or ELSEWHERE.search(plain) or plain in VERBS):
            yield plain


def _pipeline(lab: Lab, name: str, *outputs: str, **more: Any) -> None:
    lab.pipeline(
        id=name,
        connectors=[source(f"./{name}.jsonl"), *(destination(one, f"./{name}-{one}.jsonl") for one in outputs)],
        processors=[DECODE, processor("parse", "error", "after.amount == '?'", message="no amount")],
        delivery={"log": "records", "log-retention": {"time": "7d"}},
        **{"dead-letter-queue": queue(path=f"./{name}-dead.jsonl"), **more},
    )
    lab.write(f"{name}.jsonl", [{"amount": amount, "age": amount, "country": "DE"} for amount in (1, "?", 200)])


@pytest.fixture
def project(lab: Lab) -> Path:
    """Pipelines with the names of the pages, which have run."""
    record = {"after": {"amount": 1}}
    adult = {"name": "adult", "records": [record], "expect": {"destinations": {"out": [record]}}}
    _pipeline(lab, "orders", "out", "warehouse", tests=[adult])
    for name in ("logged", "customers", "warehouse", "people"):
        _pipeline(lab, name, "out")
    reads = {"id": "in", "type": "source", "plugin": "pipeline", "settings": {"pipeline": "orders"}}
    lab.pipeline(id="totals", connectors=[reads, destination("sum", "./totals.jsonl")])
    for name in ("orders", "logged", "customers", "warehouse", "people", "totals"):
        assert lab.run(name).error is None
    (lab.root / "elsewhere").mkdir()
    orders = (lab.root / "pipelines" / "orders.yaml").read_text()
    (lab.root / "elsewhere" / "orders.yaml").write_text(orders)
    (lab.root / "orders.yaml").write_text(orders)
    return lab.root


def test_each_is_understood(run: Any, project: Path) -> None:
    mistakes: list[str] = []
    lines = list(dict.fromkeys(_lines()))
    for line in lines:
        if " export " in line:
            for written in ("orders.log", "letters.jsonl"):
                (project / written).unlink(missing_ok=True)
        ran = run(*shlex.split(line))
        code = re.search(r"^error ([a-z_.]+)", ran.err + ran.out, re.MULTILINE)
        found = code[1] if code else json.loads(ran.out)["error"]["code"] if ran.code and "--json" in line else ""
        if found in OF_THE_PAGE or found.startswith("usage.") or ran.code == 2 or "Traceback" in ran.err:
            mistakes.append(f"{line}: {ran.code} {found} {ran.err.strip()[:300]}")
    assert len(lines) > 80
    assert mistakes == []
