"""Reference of connectors, processors and the pipeline file, read from their models."""

from __future__ import annotations

import inspect
import re
from collections.abc import Iterable, Iterator
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any, Final, Literal, get_args, get_origin

from pydantic import BaseModel
from pydantic.fields import FieldInfo

from conduit_dagster.builtin_plugins import DESTINATIONS, PROCESSORS, SOURCES, BuiltinPlugins
from conduit_dagster.cli.description_text import ExampleText, example_text
from conduit_dagster.config.field_docstrings import field_docstrings
from conduit_dagster.config.model_findings import kebab
from conduit_dagster.config.pipeline import PipelineFile
from conduit_dagster.engine.plugin_loading import is_of_project
from conduit_dagster.extras import extra_of, install_command
from conduit_dagster.processors.common import setting_kinds as processor_settings
from conduit_dagster.processors.common.unwrapping import PayloadField
from conduit_dagster.sdk import Destination, Processor, Source

if TYPE_CHECKING:
    from conduit_dagster.engine.plugin_loading import Plugins

_NAMES: Final[dict[Any, str]] = {
    str: "text",
    int: "integer",
    float: "number",
    bool: "true or false",
    dict: "mapping",
}
_FORMATS: Final = {
    "go-duration": "duration",
    "age": "duration, also in days",
    "byte-size": "size",
    "regex": "regular expression",
}
# an annotated text is identified by its validators
_CHECKED: Final[dict[Any, str]] = {
    get_args(processor_settings.Field)[1:]: "field reference",
    get_args(processor_settings.ChangeableField)[1:]: "field reference",
    get_args(processor_settings.DataField)[1:]: "field reference",
    get_args(PayloadField)[1:]: "field reference",
    get_args(processor_settings.Template)[1:]: "literal or Go template",
    get_args(processor_settings.Expression)[1:]: "Python expression",
}
_BOUNDS: Final = {"ge": "at least", "gt": "more than", "le": "at most", "lt": "less than"}
_UNITS: Final = ((3600, "h"), (60, "m"), (1, "s"))
_SIZES: Final = ((10**9, "GB"), (10**6, "MB"), (2**20, "MiB"), (10**3, "KB"))


def type_text(field: FieldInfo) -> str:
    """Return the type of value that a field takes, with its bounds."""
    name = _format(field) or _annotated(field.annotation, tuple(field.metadata))
    bounds = [
        f"{word} {getattr(rule, bound):g}"
        for rule in [*field.metadata, *_rules_in(field.annotation)]
        for bound, word in _BOUNDS.items()
        if getattr(rule, bound, None) is not None
    ]
    return ", ".join([name, *bounds]) if name in ("integer", "number") else name


def _format(field: FieldInfo) -> str | None:
    extra = field.json_schema_extra
    named = extra.get("format") if isinstance(extra, dict) else None
    return _FORMATS.get(str(named)) or next(_formats_in(field.annotation), None)


def _formats_in(annotation: Any) -> Iterator[str]:
    """Yield the formats inside a union, where that of an optional value is kept."""
    for field in _fields_in(annotation):
        if (name := _format(field)) is not None:
            yield name


def _rules_in(annotation: Any) -> list[Any]:
    """Return the bounds inside a union."""
    return [rule for field in _fields_in(annotation) for rule in field.metadata]


def _fields_in(annotation: Any) -> Iterator[FieldInfo]:
    for argument in get_args(annotation):
        yield from (rule for rule in getattr(argument, "__metadata__", ()) if isinstance(rule, FieldInfo))


def _annotated(annotation: Any, metadata: tuple[Any, ...]) -> str:
    checked = _CHECKED.get(metadata) if _are_hashable(metadata) else None
    return checked or _name(annotation)


def _are_hashable(values: tuple[Any, ...]) -> bool:
    return all(type(value).__hash__ is not None for value in values)


def _name(annotation: Any) -> str:
    if get_origin(annotation) is Literal:
        return "one of " + ", ".join(f"`{choice}`" for choice in get_args(annotation) if choice != "")
    if hasattr(annotation, "__metadata__"):
        return _annotated(annotation.__origin__, annotation.__metadata__)
    if get_origin(annotation) is list:
        each = _name(get_args(annotation)[0])
        return f"list of {each if each.endswith('s') else each + 's'}"
    if get_origin(annotation) is dict:
        return _NAMES[dict]
    if inspect.isclass(annotation):
        name = annotation.__name__
        return _hyphened(name) if issubclass(annotation, BaseModel) else _NAMES.get(annotation, name)
    some = [argument for argument in get_args(annotation) if argument is not type(None)]
    return " or ".join(map(_name, some)) or "any value"


def _hyphened(name: str) -> str:
    """Return ``dead-letter-queue`` for ``DeadLetterQueue``."""
    plain = name.removesuffix("Config").removesuffix("Settings")
    return re.sub(r"(?<!^)(?=[A-Z])", "-", plain).lower()


def default_text(field: FieldInfo) -> str | None:
    """Return the default as written in a file; None if it has none, or if it depends on other fields."""
    value = None if field.is_required() else field.default
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, int | float):
        return _number(value, _format(field))
    return value or None if isinstance(value, str) else None


def _number(value: float, kind: str | None) -> str:
    if kind == "duration":
        return _in_units(value, _UNITS, "s")
    return _in_units(value, _SIZES, "") if kind == "size" else f"{value:g}" if value < 10**6 else str(value)


def _in_units(value: float, units: tuple[tuple[int, str], ...], smallest: str) -> str:
    for size, unit in units:
        if value >= size and value % size == 0:
            return f"{value / size:g}{unit}"
    return f"{value:g}{smallest}"


_ROLE = re.compile(r":[a-z]+:(?=`)")
BUILTIN = "built in"
PROJECT = "project"
INSTALLED = "installed"


@dataclass(frozen=True)
class Setting:
    """One key that a user can set."""

    name: str
    type: str
    default: str | None
    required: bool
    description: str

    @property
    def shown_default(self) -> str:
        """Default as shown in tables: ``required`` for a required setting, empty without a default."""
        return "required" if self.required else self.default or ""


@dataclass(frozen=True)
class Page:
    """One plugin in one role, or one section of the pipeline file."""

    name: str
    kind: str
    origin: str
    text: str
    settings: tuple[Setting, ...]
    notes: tuple[str, ...] = ()
    examples: tuple[ExampleText, ...] = ()

    @property
    def summary(self) -> str:
        """First sentence of the text."""
        return re.split(r"(?<=\.)\s", self.text, maxsplit=1)[0]

    def as_json(self) -> dict[str, Any]:
        """Return all fields."""
        return asdict(self)


def connector_pages(plugins: Plugins) -> list[Page]:
    """Return a page for every source and destination, sorted by name."""
    pages = [
        *_builtin(SOURCES, "source", plugins),
        *_builtin(DESTINATIONS, "destination", plugins),
        *_pages(plugins.sources.items(), "source", "", plugins),
        *_pages(plugins.destinations.items(), "destination", "", plugins),
    ]
    return sorted(pages, key=lambda page: (page.name, page.kind == "destination"))


def processor_pages(plugins: Plugins) -> list[Page]:
    """Return a page for every processor, sorted by name."""
    pages = [
        *_builtin(PROCESSORS, "processor", plugins),
        *_pages(plugins.processors.items(), "processor", "", plugins),
    ]
    return sorted(pages, key=lambda page: page.name)


def _builtin(kinds: BuiltinPlugins[Any], role: str, plugins: Plugins) -> Iterator[Page]:
    yield from _pages(kinds.all().items(), role, BUILTIN, plugins)
    for name in kinds.names():
        if (error := kinds.not_installed(name, {})) is not None:
            yield Page(name, role, BUILTIN, f"Not installed: `{error.fix}`.", ())


def _pages(kinds: Iterable[tuple[str, Any]], role: str, origin: str, plugins: Plugins) -> Iterator[Page]:
    for name, kind in kinds:
        settings = tuple(settings_of(kind.Settings, plugins.texts))
        examples = tuple(example_text(example) for example in getattr(kind, "examples", ()))
        where = origin or (PROJECT if is_of_project(kind) else INSTALLED)
        yield Page(name, role, where, _text(kind), settings, tuple(_notes(kind)), examples)


def _notes(kind: Any) -> Iterator[str]:
    if extra := extra_of(kind.__module__):
        yield f"Needs the extra `{extra}`: `{install_command(extra)}`."
    keys = getattr(kind.Settings, "open_keys", ())
    if keys:
        yield f"Further settings: {', '.join(f'`{key}`' for key in keys)}."
    if issubclass(kind, Destination):
        yield f"Strategies: {', '.join(sorted(kind.strategies))}."
    if issubclass(kind, Processor) and not kind.deterministic:
        yield "It is not deterministic: the same record may become something else when a step is repeated."
    if issubclass(kind, Source) and not kind.replayable:
        yield "It cannot be read again, so it needs the log of records."


def settings_of(model: type[BaseModel], texts: dict[str, str]) -> Iterator[Setting]:
    """Yield the settings of a model in order; ``texts`` are the project's plugin files."""
    written = field_docstrings(model, texts)
    for name, field in model.model_fields.items():
        yield Setting(
            field.alias or name,
            type_text(field),
            default_text(field),
            field.is_required(),
            one_line(plain(field.description or written.get(name, ""))),
        )


def section_pages() -> list[Page]:
    """Return the sections of the pipeline file, outermost first."""
    found: dict[type[BaseModel], str] = {PipelineFile: "The file"}
    _collect(PipelineFile, found)
    return [
        Page(
            title,
            "section",
            BUILTIN,
            _text(model),
            tuple(settings_of(model, {})),
        )
        for model, title in found.items()
    ]


def _collect(model: type[BaseModel], found: dict[type[BaseModel], str]) -> None:
    """Collect sections breadth first: each one precedes the sections inside it."""
    inner = {
        section: kebab(name)
        for name, field in model.model_fields.items()
        for section in _sections_in(field.annotation)
        if section not in found
    }
    found.update(inner)
    for section in inner:
        _collect(section, found)


def _sections_in(annotation: Any) -> Iterator[type[BaseModel]]:
    if inspect.isclass(annotation) and issubclass(annotation, BaseModel):
        yield annotation
    for argument in getattr(annotation, "__args__", ()):
        yield from _sections_in(argument)


def _text(kind: type) -> str:
    return plain(inspect.cleandoc(kind.__doc__ or ""))


def plain(text: str) -> str:
    """Return a docstring without markup that is specific to Python's documentation."""
    return _ROLE.sub("", text).replace("``", "`")


def one_line(text: str) -> str:
    """Return the text without line breaks."""
    return " ".join(text.split())
