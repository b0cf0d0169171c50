"""Paths of a Go template, such as ``.Payload.After.name``: which part of a record they read, and how."""

from __future__ import annotations

from collections.abc import Callable
from operator import attrgetter
from typing import Any, NoReturn

import msgspec

from conduit_dagster.expressions.compiled import EvaluationError, ExpressionError, kind, nearest
from conduit_dagster.expressions.gotemplate.syntax import Node, Path
from conduit_dagster.record import Record

Evaluate = Callable[[Record], Any]
_ROOTS = ("Payload", "Key", "Metadata", "Operation", "Position")
_DATA: dict[tuple[str, ...], str] = {
    ("Payload", "After"): "after",
    ("Payload", "Before"): "before",
    ("Key",): "key",
}


def data_part(path: Path) -> str | None:
    """Return ``after``, ``before`` or ``key`` if the path is that whole part, otherwise ``None``."""
    return _DATA.get(path.names)


def after_field(node: Node) -> str | None:
    """Return the field's name if the node is just ``.Payload.After.NAME`` and not a method, otherwise ``None``."""
    if not isinstance(node, Path) or len(node.names) != 3 or node.names[:2] != ("Payload", "After"):
        return None
    return None if node.names[2] == "Bytes" else node.names[2]


def compile_path(path: Path) -> tuple[Evaluate, str]:
    """Return the path's function and the part of the record that it reads."""
    if not path.names or path.names == ("Payload",):
        raise ExpressionError("this prints a Go structure", path.column, "{{ toJson . }} or one of its fields")
    root, rest = path.names[0], path.names[1:]
    if root == "Payload":
        root, rest = rest[0], rest[1:]
        return _data_path(_known(root, ("After", "Before"), path, 1).lower(), ".Payload." + root, rest)
    if _known(root, _ROOTS, path, 0) == "Key":
        return _data_path("key", ".Key", rest)
    return _metadata(path, rest) if root == "Metadata" else _text(root, path, rest)


def _known(name: str, known: tuple[str, ...], path: Path, at: int) -> str:
    if name not in known:
        fields = ", ".join(f".{field}" for field in known)
        fix = nearest(name, known) or f"fields of a document are written .Payload.After.{name}"
        raise ExpressionError(f"`.{name}` is none of {fields}", path.columns[at], fix)
    return name


def _text(root: str, path: Path, rest: tuple[str, ...]) -> tuple[Evaluate, str]:
    if rest not in ((), ("String",)):
        raise ExpressionError(f".{root} is text and has no field `.{rest[0]}`", path.columns[1])
    if root == "Operation":
        return attrgetter("operation"), "operation"
    return (lambda record: str(record.position)), "position"


def _metadata(path: Path, rest: tuple[str, ...]) -> tuple[Evaluate, str]:
    if rest and rest[0].startswith(("Get", "Set")):
        fix = '{{ index .Metadata "opencdc.collection" }}'
        raise ExpressionError(f"the method `.{rest[0]}` is not translated from Go templates", path.columns[1], fix)
    return (_walk("metadata", ".Metadata", rest) if rest else attrgetter("metadata")), "metadata"


def _data_path(part: str, written: str, rest: tuple[str, ...]) -> tuple[Evaluate, str]:
    if not rest:
        return attrgetter(part), part
    if rest == ("Bytes",):
        return _data_bytes(part), part
    return (_field(part, written, rest[0]) if len(rest) == 1 else _walk(part, written, rest)), part


def _data_bytes(part: str) -> Evaluate:
    data = attrgetter(part)

    def call(record: Record) -> bytes:
        value = data(record)
        if value is None:
            return b""
        return value if isinstance(value, bytes) else msgspec.json.encode(value)

    return call


def _field(part: str, written: str, name: str) -> Evaluate:
    if part == "after":
        return _after(written, name)
    data = attrgetter(part)

    def call(record: Record) -> Any:
        value = data(record)
        return value.get(name) if value.__class__ is dict else no_field(value, name, written)

    return call


def _after(written: str, name: str) -> Evaluate:
    # by far the most common path, so it avoids the attrgetter
    def call(record: Record) -> Any:
        value: Any = record.after
        return value.get(name) if value.__class__ is dict else no_field(value, name, written)

    return call


def _walk(part: str, written: str, names: tuple[str, ...]) -> Evaluate:
    data = attrgetter(part)

    def call(record: Record) -> Any:
        return walk(data(record), names, written)

    return call


def walk(value: Any, names: tuple[str, ...], written: str) -> Any:
    """Follow the fields one after another. As in Go, a missing field gives ``None``; a field of null is an error."""
    for name in names:
        if value.__class__ is not dict:
            no_field(value, name, written)
        if name not in value:
            return None
        value = value[name]
    return value


def no_field(value: Any, name: str, written: str) -> NoReturn:
    """Raise Go's error for a field of a value without fields."""
    if isinstance(value, bytes):
        raise EvaluationError(
            f"cannot resolve field {name!r}: {written} is raw, not a document (put json.decode before it)"
        )
    raise EvaluationError(f"cannot resolve field {name!r} in {written}: {kind(value)} has no fields")
