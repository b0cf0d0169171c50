"""The syntax tree of an action."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Literal:
    """A text, number, boolean or nil."""

    value: str | int | float | bool | None
    column: int


@dataclass(frozen=True, slots=True)
class Path:
    """``.Payload.After.x``; no names: ``.`` alone."""

    names: tuple[str, ...]
    column: int
    columns: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Chain:
    """Fields of what a parenthesised call gives."""

    base: Node
    names: tuple[str, ...]
    column: int


@dataclass(frozen=True, slots=True)
class Call:
    """A function and its arguments; a pipeline's value is the last one."""

    function: str
    arguments: tuple[Node, ...]
    column: int


Node = Literal | Path | Chain | Call
