"""Imports run one way, top to bottom (DESIGN.md, The house)."""

from __future__ import annotations

import ast
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

from lab.modules import modules

LAYERS = [
    {"conduit_dagster.definitions", "conduit_dagster.component", "conduit_dagster.cli"},
    {"conduit_dagster.assets", "conduit_dagster.sensors", "conduit_dagster.resources"},
    {"conduit_dagster.testing", "conduit_dagster.metrics", "conduit_dagster.alerts", "conduit_dagster.lineage"},
    {"conduit_dagster.engine"},
    {"conduit_dagster.builtin_plugins"},
    {"conduit_dagster.connectors", "conduit_dagster.processors"},
    {"conduit_dagster.commit_log"},
    {"conduit_dagster.sdk", "conduit_dagster.connectors.formats"},
    {"conduit_dagster.schemas"},
    {
        "conduit_dagster.spark",
        "conduit_dagster.state",
        "conduit_dagster.recovery",
        "conduit_dagster.config",
        "conduit_dagster.extras",
    },
    {"conduit_dagster.storage"},
    {"conduit_dagster.private_home", "conduit_dagster.store_files"},
    {"conduit_dagster.field_reference", "conduit_dagster.reference_syntax", "conduit_dagster.expressions"},
    {"conduit_dagster.javascript"},
    {"conduit_dagster.warm"},
    {"conduit_dagster.readable", "conduit_dagster.payload_code"},
    {
        "conduit_dagster.daemon_threads",
        "conduit_dagster.processes",
        "conduit_dagster.lazy_property",
        "conduit_dagster.node_ids",
        "conduit_dagster.public_network",
        "conduit_dagster.secret_values",
        "conduit_dagster.timed_responses",
        "conduit_dagster.sink",
        "conduit_dagster.even_pieces",
        "conduit_dagster.whole_numbers",
        "conduit_dagster.msgspec_warmup",
    },
    {"conduit_dagster.lazy_records", "conduit_dagster.change_marks"},
    {"conduit_dagster.record", "conduit_dagster.json_values"},
]


def level(module: str) -> int | None:
    """The longest name that contains it decides."""
    within = [
        (len(name), number)
        for number, names in enumerate(LAYERS)
        for name in names
        if module == name or module.startswith(name + ".")
    ]
    return max(within)[1] if within else None


def imports(path: Path) -> Iterator[str]:
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and node.module:
            yield node.module
            yield from (f"{node.module}.{alias.name}" for alias in node.names)


def test_every_module_has_a_layer() -> None:
    assert [name for name, _ in modules() if name != "conduit_dagster" and level(name) is None] == []


def test_nothing_imports_from_above() -> None:
    wrong = [
        f"{name} imports {target}"
        for name, path in modules()
        if (own := level(name)) is not None
        for target in imports(path)
        if (other := level(target)) is not None and other < own
    ]
    assert wrong == []


def test_only_the_dagster_layer_imports_dagster() -> None:
    allowed = tuple(
        f"conduit_dagster.{name}" for name in ("assets", "sensors", "resources", "definitions", "component")
    )
    wrong = [
        name
        for name, path in modules()
        if not name.startswith(allowed) and any(i.split(".")[0].startswith("dagster") for i in imports(path))
    ]
    assert wrong == []


def test_the_planner_and_the_plugins_import_no_spark() -> None:
    """``validate`` binds pipelines to plugins; it must start no JVM and import no pyspark."""
    code = (
        "import sys, conduit_dagster.engine.bound_pipeline\n"
        "from conduit_dagster.builtin_plugins import DESTINATIONS, PROCESSORS, SOURCES\n"
        "[plugins.all() for plugins in (SOURCES, DESTINATIONS, PROCESSORS)]\n"
        "print([m for m in ('pyspark', 'dagster', 'pandas') if m in sys.modules])"
    )
    found = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert found.stdout.strip() == "[]"
