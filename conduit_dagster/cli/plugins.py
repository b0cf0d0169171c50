"""``connectors`` and ``processors``: the reference, from the plugins' own models."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

from conduit_dagster.cli.verb import AsJson, Outcome, current_project, perform, usage_error

if TYPE_CHECKING:
    from rich.console import Console

    from conduit_dagster.cli.description_text import ExampleText
    from conduit_dagster.cli.reference import Page
    from conduit_dagster.engine.plugin_loading import Plugins

connectors = typer.Typer(no_args_is_help=True, help="Sources and destinations, also the project's own.")
processors = typer.Typer(no_args_is_help=True, help="Processors, also the project's own.")
Name = Annotated[str, typer.Argument(metavar="NAME", help="The plugin's name, such as file or field.set.")]


@connectors.command("list")
def list_connectors(as_json: AsJson = False) -> None:
    """List all connectors."""
    perform("connectors list", as_json, lambda: _list("connector"))


@connectors.command("describe")
def describe_connector(name: Name, as_json: AsJson = False) -> None:
    """Describe one connector, as a source and as a destination, with its settings."""
    perform("connectors describe", as_json, lambda: _describe("connector", name))


@processors.command("list")
def list_processors(as_json: AsJson = False) -> None:
    """List all processors."""
    perform("processors list", as_json, lambda: _list("processor"))


@processors.command("describe")
def describe_processor(name: Name, as_json: AsJson = False) -> None:
    """Describe one processor with its settings."""
    perform("processors describe", as_json, lambda: _describe("processor", name))


def _pages(noun: str) -> tuple[list[Page], list[str]]:
    """Return the pages, and what is wrong with the plugins that have none because they can't be used."""
    from conduit_dagster.cli.reference import connector_pages, processor_pages

    plugins = _plugins()
    broken = [f"{error.file}:{error.line}: {error}" for error in plugins.errors]
    return connector_pages(plugins) if noun == "connector" else processor_pages(plugins), broken


def _plugins() -> Plugins:
    from conduit_dagster.engine.plugin_loading import project_plugins

    return project_plugins(current_project().root)


def _list(noun: str) -> Outcome:
    from conduit_dagster.cli.terminal import count

    pages, broken = _pages(noun)
    rows = [{"name": p.name, "kind": p.kind, "origin": p.origin, "summary": p.summary} for p in pages]
    result = {f"{noun}s": rows, "broken": broken}
    return Outcome(count(len(rows), noun), result, show=lambda console: _show_list(console, pages, broken))


def _show_list(console: Console, pages: list[Page], broken: list[str]) -> None:
    from conduit_dagster.cli.terminal import print_table

    rows = [(page.name, page.kind, page.origin, page.summary) for page in pages]
    print_table(console, ("name", "kind", "origin", ""), rows)
    for error in broken:
        console.print(f"can't be used: {error}", markup=False)


def _describe(noun: str, name: str) -> Outcome:
    from conduit_dagster.builtin_plugins import plain_name

    pages, broken = _pages(noun)
    found = [page for page in pages if page.name in (name, plain_name(name))]
    if not found:
        raise _unknown(noun, name, [page.name for page in pages], broken)
    result = {"name": found[0].name, "pages": [page.as_json() for page in found]}
    return Outcome("", result, show=lambda console: _show_pages(console, found))


def _out(example: ExampleText) -> list[tuple[str, str]]:
    return [("out", text) for text in example.gives]


def _unknown(noun: str, name: str, names: list[str], broken: list[str]) -> Exception:
    from conduit_dagster.config.findings import did_you_mean

    fix = did_you_mean(name, names) or f"conduit-dagster {noun}s list shows them all"
    if broken:
        fix = f"correct {'; '.join(broken)}; or {fix}"
    return usage_error(f"there is no {noun} {name}", f"unknown_{noun}", fix)


def _show_pages(console: Console, pages: list[Page]) -> None:
    from rich.text import Text

    from conduit_dagster.cli.terminal import print_table

    for page in pages:
        console.print(Text.assemble((page.name, "bold"), f"  {page.kind}, {page.origin}"))
        console.print(page.text)
        rows = [(s.name, s.type, s.shown_default, s.description) for s in page.settings]
        if rows:
            print_table(console, ("setting", "type", "default", "description"), rows)
        for line in page.notes:
            console.print(line)
        for example in page.examples:
            console.print(f"\n{example.title}")
            print_table(console, ("", ""), [*example.settings.items(), ("in", example.given), *_out(example)])
        console.print()
