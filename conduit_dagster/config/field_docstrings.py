"""Descriptions of settings: the docstrings below the fields of a model, read from its source."""

from __future__ import annotations

import ast
import inspect
import itertools
import sys
from collections.abc import Iterator, Mapping

from pydantic import BaseModel

_PROJECT = "conduit_plugins."


def field_docstrings(model: type[BaseModel], texts: Mapping[str, str]) -> dict[str, str]:
    """Return field docstrings by name, base classes first; ``texts`` are the project's plugin files by module name."""
    found: dict[str, str] = {}
    for kind in reversed(model.__mro__):
        if issubclass(kind, BaseModel) and kind is not BaseModel:
            found.update(_of_class(_source(kind.__module__, texts), kind.__name__))
    return found


def _source(module: str, texts: Mapping[str, str]) -> str:
    if module.startswith(_PROJECT):
        # the module is named after its file and its text
        return texts.get(module.removeprefix(_PROJECT).rpartition("_")[0], "")
    try:
        return inspect.getsource(sys.modules[module])
    except (OSError, TypeError, KeyError):
        return ""


def _of_class(source: str, name: str) -> Iterator[tuple[str, str]]:
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.ClassDef) and node.name == name:
            yield from _of_body(node.body)


def _of_body(body: list[ast.stmt]) -> Iterator[tuple[str, str]]:
    for field, below in itertools.pairwise(body):
        match field, below:
            case ast.AnnAssign(target=ast.Name(id=name)), ast.Expr(value=ast.Constant(value=str(text))):
                yield name, inspect.cleandoc(text)
            case _:
                pass
