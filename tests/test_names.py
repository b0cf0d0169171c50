"""A name means one thing: a search for it finds one place."""

from __future__ import annotations

import ast
import re
from pathlib import Path

from lab.modules import ROOT, modules

OF_PLUGINS = {"settings", "source", "destination"}
"""Every connector's package may have these."""


def _is_of_plugin(path: Path) -> bool:
    return path.stem in OF_PLUGINS and path.parents[1] == ROOT / "conduit_dagster" / "connectors"


def _only_once(found: list[tuple[str, Path]]) -> list[str]:
    places: dict[str, list[str]] = {}
    for name, path in found:
        places.setdefault(name, []).append(str(path.relative_to(ROOT)))
    return [f"{name}: {', '.join(sorted(where))}" for name, where in places.items() if len(where) > 1]


def test_no_two_modules_have_one_name() -> None:
    found = [(path.stem, path) for _, path in modules() if path.stem != "__init__" and not _is_of_plugin(path)]
    assert len(found) > 300
    assert _only_once(found) == []


def test_no_two_public_classes_have_one_name() -> None:
    found = [
        (node.name, path)
        for _, path in modules()
        for node in ast.parse(path.read_text(encoding="utf-8")).body
        if isinstance(node, ast.ClassDef) and not node.name.startswith("_")
    ]
    assert len(found) > 300
    assert _only_once(found) == []


def test_the_files_that_the_architecture_names_are_there() -> None:
    text = (ROOT / "docs" / "architecture.md").read_text(encoding="utf-8")
    named = set(re.findall(r"`([\w/]+\.py)`", text))
    found = [*ROOT.glob("conduit_dagster/**/*.py"), *ROOT.glob("tests/**/*.py")]
    there = [f"/{path.relative_to(ROOT)}" for path in found]
    lost = [name for name in named if not any(path.endswith(f"/{name}") for path in there)]
    assert len(named) > 20
    assert lost == []
