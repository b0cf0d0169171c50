"""Constructors stay readable: at most four arguments; more belong into a plain data class (HOUSE.md)."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

from lab.modules import modules

MOST = 4


def constructors(path: Path) -> Iterator[tuple[str, ast.arguments]]:
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.ClassDef):
            yield from (
                (node.name, item.args)
                for item in node.body
                if isinstance(item, ast.FunctionDef) and item.name == "__init__"
            )


def test_no_constructor_has_more_than_four_arguments() -> None:
    found = [
        (module, name, len(args.args) + len(args.kwonlyargs) - 1)
        for module, path in modules()
        for name, args in constructors(path)
    ]
    assert len(found) > 100
    # an error's are its fields: code, place, fix and node are given by name
    assert [one for one in found if one[2] > MOST and one[1] != "ConduitError"] == []
