"""The reference of connectors, processors and the pipeline file, read from their models."""

from __future__ import annotations

import inspect
import re
from collections.abc import Iterable, Iterator
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any

from pydantic import BaseModel

from conduit_dagster.cli.docstrings import field_docstrings
from conduit_dagster.cli.example_text import ExampleText, example_text
from conduit_dagster.cli.setting_types import default_text, type_text
from conduit_dagster.config.check import kebab
from conduit_dagster.config.pipeline import PipelineFile
from conduit_dagster.connectors import registry as connector_registry
from conduit_dagster.engine.plugins import is_of_project
from conduit_dagster.processors import registry as processor_registry
from conduit_dagster.sdk import Destination, Processor, Source

if TYPE_CHECKING:
    from conduit_dagster.engine.plugins import Plugins

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
        """The default, or that there is none."""
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
        """The first sentence."""
        return re.split(r"(?<=\.)\s", self.text, maxsplit=1)[0]

    def as_json(self) -> dict[str, Any]:
        """All fields."""
        return asdict(self)


def connector_pages(plugins: Plugins) -> list[Page]:
    """Every source and destination, by name."""
    sources = {name: connector_registry.find_source(name, {}) for name in connector_registry.source_names()}
    destinations = {
        name: connector_registry.find_destination(name, {}) for name in connector_registry.destination_names()
    }
    pages = [
        *_pages(sources.items(), "source", BUILTIN, plugins),
        *_pages(destinations.items(), "destination", BUILTIN, plugins),
        *_pages(plugins.sources.items(), "source", "", plugins),
        *_pages(plugins.destinations.items(), "destination", "", plugins),
    ]
    return sorted(pages, key=lambda page: (page.name, page.kind == "destination"))


def processor_pages(plugins: Plugins) -> list[Page]:
    """Every processor, by name."""
    pages = [
        *_pages(processor_registry.builtin().items(), "processor", BUILTIN, plugins),
        *_pages(plugins.processors.items(), "processor", "", plugins),
    ]
    return sorted(pages, key=lambda page: page.name)


def _pages(kinds: Iterable[tuple[str, Any]], role: str, origin: str, plugins: Plugins) -> Iterator[Page]:
    for name, kind in kinds:
        settings = tuple(settings_of(kind.Settings, plugins.texts))
        examples = tuple(example_text(example) for example in getattr(kind, "examples", ()))
        where = origin or (PROJECT if is_of_project(kind) else INSTALLED)
        yield Page(name, role, where, _text(kind), settings, tuple(_notes(kind)), examples)


def _notes(kind: Any) -> Iterator[str]:
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
    """The settings of a model in their order; ``texts`` are the project's plugin files."""
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
    """The sections of the pipeline file, outermost first."""
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
    """Breadth first: a reader meets a section before what is in it."""
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
    """A docstring without the markup that only Python's documentation knows."""
    return _ROLE.sub("", text).replace("``", "`")


def one_line(text: str) -> str:
    """The text without its line breaks."""
    return " ".join(text.split())
