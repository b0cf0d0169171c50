"""Processors and connectors that are not built in: from the project's ``plugins/`` folder, and from installed packages.

A package declares them as entry points of the group ``conduit_dagster.plugins``, each a class, or a module with
classes. Packages must be installed wherever tasks run; the project's own files are sent with the tasks. A class that
the engine could not call as it calls plugins is refused here: its mistake would show only once records move, or never.
"""

from __future__ import annotations

import inspect
import traceback
import types
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from functools import cache
from importlib.metadata import entry_points
from pathlib import Path
from typing import Any, get_args

from pydantic import BaseModel

from conduit_dagster.builtin_plugins import plain_name
from conduit_dagster.engine.log_source import JoinSource
from conduit_dagster.processors.common.modules import module_of
from conduit_dagster.sdk import Destination, Processor, Source, Strategy
from conduit_dagster.sdk.promises import is_built_in
from conduit_dagster.state.pipeline_state import CATCH_UP, REPLAY

_BASES = (Processor, Source, Destination)
_RESERVED = frozenset({JoinSource.name, CATCH_UP, REPLAY})
"""Names of the engine's own sources, by which the state store tells them from a plugin's."""
GROUP = "conduit_dagster.plugins"
_PACKAGE = "conduit_plugins"
_FIX = "fix the file; conduit-dagster validate --debug shows the traceback"
_IMPORT = (
    "install the package wherever tasks run; a file in plugins/ can't import its neighbours: put all into one file"
)
_ONE_NAME = "uninstall one of the two packages; or write a class of that name in plugins/, which is taken before both"


class PluginError(Exception):
    """Raised for a plugin file or class that can't be used; ``line`` is its place, ``trace`` the traceback."""

    def __init__(self, file: str, error: BaseException) -> None:
        super().__init__(str(error) if isinstance(error, _PluginMistakeError) else f"{type(error).__name__}: {error}")
        self.file = file
        self.line = _line_in(file, error)
        self.trace = "".join(traceback.format_exception(error))
        self.fix = _IMPORT if isinstance(error, ImportError) else getattr(error, "fix", _FIX)


def _line_in(file: str, error: BaseException) -> int:
    """Return the line of the file that the error is about; 1 if it names none."""
    if isinstance(error, _PluginMistakeError):
        return error.line
    if isinstance(error, SyntaxError) and error.filename == file:
        return error.lineno or 1
    frames = traceback.extract_tb(error.__traceback__)
    return next((frame.lineno or 1 for frame in reversed(frames) if frame.filename == file), 1)


@dataclass
class Plugins:
    """Available plugin classes by name. The project's own take precedence over installed ones."""

    sources: dict[str, type[Source]] = field(default_factory=dict[str, type[Source]])
    destinations: dict[str, type[Destination]] = field(default_factory=dict[str, type[Destination]])
    processors: dict[str, type[Processor]] = field(default_factory=dict[str, type[Processor]])
    texts: dict[str, str] = field(default_factory=dict[str, str])
    """Module name to source text: loaded by tasks in place of files."""
    errors: list[PluginError] = field(default_factory=list[PluginError])
    packages: dict[type[Any], tuple[str, str]] = field(default_factory=dict[type[Any], tuple[str, str]])
    """The installed package of a class: its name and its version."""


def read_plugins(root: Path, unreadable: list[PluginError] | None = None) -> dict[str, str]:
    """Return the source text of every plugin file of the project, by module name; unreadable files are left out.

    ``unreadable`` collects their errors.
    """
    folder, texts, files = root / "plugins", dict[str, str](), list[Path]()
    try:
        files = sorted(file for file in folder.iterdir() if file.suffix == ".py")
    except (FileNotFoundError, NotADirectoryError):
        pass
    except OSError as error:
        if unreadable is not None:
            unreadable.append(PluginError("plugins", error))
    for path in files:
        try:
            if not path.name.startswith("_"):
                texts[path.stem] = path.read_text(encoding="utf-8")
        except (OSError, ValueError) as error:
            if unreadable is not None:
                unreadable.append(PluginError(f"plugins/{path.name}", error))
    return texts


def project_plugins(root: Path) -> Plugins:
    """Return the plugins of a project, and of installed packages; those that can't be loaded are in ``errors``."""
    unreadable: list[PluginError] = []
    found = load_plugins(read_plugins(root, unreadable))
    found.errors[:0] = unreadable
    return found


def load_plugins(texts: Mapping[str, str], installed: bool = True) -> Plugins:
    """Run each text as a module and collect the classes it defines; a broken module does not affect the others.

    ``installed``: also load plugins of installed packages.
    """
    found, own = Plugins(texts=dict(texts)), Plugins()
    for name, text in texts.items():
        file = f"plugins/{name}.py"
        try:
            kinds = list(_kinds(module_of(_PACKAGE, name, text, file)))
        except (Exception, SystemExit) as error:  # noqa: BLE001  # an author's module may raise anything
            found.errors.append(PluginError(file, error))
            continue
        for kind in kinds:
            _add_own(found, own, kind, file)
    if installed:
        _add_installed(found, own)
    for kinds in (own.sources, own.destinations, own.processors):
        for kind in kinds.values():
            _add(found, kind)
    return found


def _add_own(found: Plugins, own: Plugins, kind: type[Any], file: str) -> None:
    """Add a project's class, unless it can't work or has the name of another one of the project."""
    try:
        _require_usable(kind)
        _require_free(kind)
        if (other := _same_kind(own, kind).get(kind.name)) is not None:
            message = f"{kind.__name__} has the name {kind.name}, which is that of {other.__name__} too"
            raise _PluginMistakeError(message, _line_of(kind))
    except _PluginMistakeError as error:
        found.errors.append(PluginError(file, error))
        return
    _add(own, kind)


def is_of_project(kind: type[Any]) -> bool:
    """Return whether a plugin belongs to the project, rather than being built in or installed as a package."""
    return kind.__module__.startswith(f"{_PACKAGE}.")


def failure_of(error: BaseException, plugins: Plugins) -> str | None:
    """Return the line of a project's or installed plugin that raised this error, as ``FILE:LINE``; None if in none."""
    own = {
        kind.__module__
        for kinds in (plugins.sources, plugins.destinations, plugins.processors)
        for kind in kinds.values()
    }
    frames = [frame for frame in traceback.walk_tb(error.__traceback__) if frame[0].f_globals.get("__name__") in own]
    if not frames:
        return None
    frame, line = frames[-1]
    return f"{frame.f_code.co_filename}:{line}"


def _add_installed(found: Plugins, own: Plugins) -> None:
    """Add the classes of packages that no class of the project replaces; of two with one name, neither."""
    givers = dict[type[Any], str]()
    clashes = list[type[Any]]()
    for name, package, kinds in _installed():
        if isinstance(kinds, BaseException):
            found.errors.append(PluginError(name, kinds))
            continue
        for kind in kinds:
            other = _same_kind(found, kind).get(kind.name)
            if other not in (None, kind) and kind.name not in _same_kind(own, kind):
                # which one is first depends on the folder that Python looks in first: workers may take the other
                message = f"the name {kind.name} is also that of {other.__name__} in {givers[other]}"
                found.errors.append(PluginError(name, _PluginMistakeError(message, fix=_ONE_NAME)))
                clashes.append(kind)
            _add(found, kind)
            givers[kind], found.packages[kind] = name, package
    for kind in clashes:
        _same_kind(found, kind).pop(kind.name, None)


@cache
def _installed() -> list[tuple[str, tuple[str, str], list[type[Any]] | BaseException]]:
    """Return the classes, or the error, of each entry point, with its package; imported once per process."""
    found: list[tuple[str, tuple[str, str], list[type[Any]] | BaseException]] = []
    for point in entry_points(group=GROUP):
        package = (point.dist.name, point.dist.version) if point.dist else ("a package", "")
        name = f"{package[0]}: {point.name}"
        try:
            thing = point.load()
            kinds = [thing] if inspect.isclass(thing) else list(_kinds(thing))
            for kind in kinds:
                _require_usable(kind)
                _require_free(kind)
            found.append((name, package, kinds))
        except (Exception, SystemExit) as error:  # noqa: BLE001  # a package may raise anything while it is imported
            found.append((name, package, error))
    return found


def _kinds(module: types.ModuleType) -> Iterator[type[Any]]:
    """Return the plugins that a module itself defines."""
    for value in vars(module).values():
        own = inspect.isclass(value) and issubclass(value, _BASES) and value.__module__ == module.__name__
        if not own or not (name := getattr(value, "name", "")) or _is_base(value):
            continue
        if not isinstance(name, str):
            raise TypeError(f"the name of the plugin {value.__name__} is not a text: {name!r}")
        yield value


def _is_base(kind: type[Any]) -> bool:
    """Return whether an abstract class is meant for others to derive from: it has none of the names of plugins."""
    return inspect.isabstract(kind) and ("name" not in vars(kind) or bool(kind.__subclasses__()))


def _require_free(kind: type[Any]) -> None:
    if issubclass(kind, Source) and kind.name in _RESERVED:
        taken = ", ".join(sorted(_RESERVED))
        message = f"the source {kind.__name__} can't be named {kind.name}: the engine's own are called {taken}"
        raise _PluginMistakeError(message, _line_of(kind))


def _add(found: Plugins, kind: type[Any]) -> None:
    _same_kind(found, kind)[kind.name] = kind


def _same_kind(found: Plugins, kind: type[Any]) -> dict[str, Any]:
    if issubclass(kind, Processor):
        return found.processors
    return found.sources if issubclass(kind, Source) else found.destinations


_STRATEGIES = frozenset(get_args(Strategy))
_NO_GENERATOR = frozenset({"initial", "latest", "ack", "process", "process_block", "deliver", "publish", "sender"})
"""Methods whose results are not iterated: a ``yield`` in one means that its body never runs."""


class _PluginMistakeError(TypeError):
    """Raised for a class that cannot work; ``line`` is the place in its file, 1 if unknown."""

    def __init__(self, message: str, line: int = 1, fix: str = _FIX) -> None:
        super().__init__(message)
        self.line, self.fix = line, fix


def _require_usable(kind: type[Any]) -> None:
    """Raise ``_PluginMistakeError`` for a class that the engine could not call as it calls plugins."""
    if missing := sorted(getattr(kind, "__abstractmethods__", ())) or _missing_process(kind):
        raise _PluginMistakeError(f"{kind.__name__} lacks {', '.join(missing)}", _line_of(kind))
    for name, method in _own_methods(kind):
        _check_method(kind, name, method)
    _check_attributes(kind)


def _check_attributes(kind: type[Any]) -> None:
    name, line = kind.__name__, _line_of(kind)
    if not (inspect.isclass(kind.Settings) and issubclass(kind.Settings, BaseModel)):
        base = "ProcessorSettings" if issubclass(kind, Processor) else "ConnectorSettings"
        raise _PluginMistakeError(f"{name}.Settings must be a class that derives from {base}", line)
    if plain_name(kind.name) != kind.name:
        raise _PluginMistakeError(f"the name {kind.name} has a prefix or a version: only built-in plugins have", line)
    if issubclass(kind, Source) and isinstance(kind.identity_settings, str):
        raise _PluginMistakeError(f'{name}.identity_settings must be a tuple: ("{kind.identity_settings}",)', line)
    if issubclass(kind, Destination) and (isinstance(kind.strategies, str) or set(kind.strategies) - _STRATEGIES):
        raise _PluginMistakeError(f"{name}.strategies must be a set of some of {', '.join(sorted(_STRATEGIES))}", line)


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
        raise _PluginMistakeError(f"{place} is async: nothing awaits it; write def, and asyncio.run(...) inside", line)
    if name in _NO_GENERATOR and inspect.isgeneratorfunction(method):
        raise _PluginMistakeError(f"{place} has a yield, so nothing in it runs: return the result instead", line)
    wanted, given = inspect.signature(protocol), inspect.signature(method)
    arguments = [None] * len(_positional(wanted))
    try:
        given.bind(*arguments)
    except TypeError as error:
        message = f"{place}{given} can't be called as {name}({', '.join(_positional(wanted))}): {error}"
        raise _PluginMistakeError(message, line) from None


def _positional(signature: inspect.Signature) -> list[str]:
    kinds = (inspect.Parameter.POSITIONAL_ONLY, inspect.Parameter.POSITIONAL_OR_KEYWORD)
    return [name for name, parameter in signature.parameters.items() if parameter.kind in kinds]


def _line_of(kind: type[Any]) -> int:
    """Return the line of the first method of a class, as Python 3.11 does not keep its own; 1 if it has none."""
    lines = [method.__code__.co_firstlineno for method in vars(kind).values() if inspect.isfunction(method)]
    return min(lines, default=1)
