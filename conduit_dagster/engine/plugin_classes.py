"""Mistakes in a plugin's class that would show only once records move, or never."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterator
from typing import Any, get_args

from pydantic import BaseModel

from conduit_dagster.builtin_plugins import plain_name
from conduit_dagster.sdk import Destination, Processor, Source, Strategy
from conduit_dagster.sdk.promises import is_built_in

_BASES = (Processor, Source, Destination)
_STRATEGIES = frozenset(get_args(Strategy))
_NO_GENERATOR = frozenset({"initial", "latest", "ack", "process", "process_block", "deliver", "publish", "sender"})
"""Methods whose results are not iterated: a ``yield`` in one means that its body never runs."""


class PluginMistakeError(TypeError):
    """Raised for a class that cannot work; ``line`` is the place in its file, 1 if unknown."""

    def __init__(self, message: str, line: int = 1) -> None:
        super().__init__(message)
        self.line = line


def require_usable(kind: type[Any]) -> None:
    """Raise ``PluginMistakeError`` for a class that the engine could not call as it calls plugins."""
    if missing := sorted(getattr(kind, "__abstractmethods__", ())) or _missing_process(kind):
        raise PluginMistakeError(f"{kind.__name__} lacks {', '.join(missing)}", line_of(kind))
    for name, method in _own_methods(kind):
        _check_method(kind, name, method)
    _check_attributes(kind)


def _check_attributes(kind: type[Any]) -> None:
    name, line = kind.__name__, line_of(kind)
    if not (inspect.isclass(kind.Settings) and issubclass(kind.Settings, BaseModel)):
        base = "ProcessorSettings" if issubclass(kind, Processor) else "ConnectorSettings"
        raise PluginMistakeError(f"{name}.Settings must be a class that derives from {base}", line)
    if plain_name(kind.name) != kind.name:
        raise PluginMistakeError(f"the name {kind.name} has a prefix or a version: only built-in plugins have", line)
    if issubclass(kind, Source) and isinstance(kind.identity_settings, str):
        raise PluginMistakeError(f'{name}.identity_settings must be a tuple: ("{kind.identity_settings}",)', line)
    if issubclass(kind, Destination) and (isinstance(kind.strategies, str) or set(kind.strategies) - _STRATEGIES):
        raise PluginMistakeError(f"{name}.strategies must be a set of some of {', '.join(sorted(_STRATEGIES))}", line)


def _missing_process(kind: type[Any]) -> list[str]:
    names = ("process", "process_block", "_each", "_one")
    lacks = issubclass(kind, Processor) and all(getattr(kind, name) is getattr(Processor, name) for name in names)
    return ["process"] if lacks else []


def _own_methods(kind: type[Any]) -> Iterator[tuple[str, Callable[..., Any]]]:
    """Return the methods of the engine's protocol that the class, or another one outside this package, defines."""
    for name in dir(kind):
        giver = next((one for one in kind.__mro__ if name in vars(one)), kind)
        method = vars(giver).get(name)
        if not is_built_in(giver) and inspect.isfunction(method) and _protocol(kind, name) is not None:
            yield name, method


def _protocol(kind: type[Any], name: str) -> Callable[..., Any] | None:
    """Return the engine's own method of this name; None for methods that the class adds."""
    bases = [one for one in kind.__mro__ if one.__module__.startswith("conduit_dagster.sdk.") and name in vars(one)]
    method = vars(bases[-1])[name] if bases and (not name.startswith("_") or name == "__init__") else None
    return method if inspect.isfunction(method) else None


def _check_method(kind: type[Any], name: str, method: Callable[..., Any]) -> None:
    protocol, place = _protocol(kind, name), f"{kind.__name__}.{name}"
    line = method.__code__.co_firstlineno
    assert protocol is not None
    if inspect.iscoroutinefunction(method) or inspect.isasyncgenfunction(method):
        raise PluginMistakeError(f"{place} is async: nothing awaits it; write def, and asyncio.run(...) inside", line)
    if name in _NO_GENERATOR and inspect.isgeneratorfunction(method):
        raise PluginMistakeError(f"{place} has a yield, so nothing in it runs: return the result instead", line)
    wanted, given = inspect.signature(protocol), inspect.signature(method)
    arguments = [None] * len(_positional(wanted))
    try:
        given.bind(*arguments)
    except TypeError as error:
        message = f"{place}{given} can't be called as {name}({', '.join(_positional(wanted))}): {error}"
        raise PluginMistakeError(message, line) from None


def _positional(signature: inspect.Signature) -> list[str]:
    kinds = (inspect.Parameter.POSITIONAL_ONLY, inspect.Parameter.POSITIONAL_OR_KEYWORD)
    return [name for name, parameter in signature.parameters.items() if parameter.kind in kinds]


def line_of(kind: type[Any]) -> int:
    """Return the line of the first method of a class, as Python 3.11 does not keep its own; 1 if it has none."""
    lines = [method.__code__.co_firstlineno for method in vars(kind).values() if inspect.isfunction(method)]
    return min(lines, default=1)
