"""``connectors`` and ``processors``: the reference, from the plugins' own models."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

from conduit_dagster.cli.verb import Outcome, count, current_project, usage_error, verb

if TYPE_CHECKING:
    from rich.console import Console

    from conduit_dagster.cli.reference import Page

connectors = typer.Typer(no_args_is_help=True, help="Sources and destinations, also the project's own.")
processors = typer.Typer(no_args_is_help=True, help="Processors, also the project's own.")
Name = Annotated[str, typer.Argument(metavar="NAME", help="The plugin's name, such as file or field.set.")]


@connectors.command("list")
@verb("connectors list")
def list_connectors() -> Outcome:
    """List all connectors."""
    return _list("connector")


@connectors.command("describe")
@verb("connectors describe")
def describe_connector(name: Name) -> Outcome:
    """Describe one connector, as a source and as a destination, with its settings."""
    return _describe("connector", name)


@processors.command("list")
@verb("processors list")
def list_processors() -> Outcome:
    """List all processors."""
    return _list("processor")


@processors.command("describe")
@verb("processors describe")
def describe_processor(name: Name) -> Outcome:
    """Describe one processor with its settings."""
    return _describe("processor", name)


def _pages(noun: str) -> tuple[list[Page], list[str]]:
    """Return the pages, and what is wrong with the plugins that have none because they can't be used."""
    from conduit_dagster.cli.reference import connector_pages, processor_pages
    from conduit_dagster.engine.plugin_loading import project_plugins

    plugins = project_plugins(current_project().root)
    broken = [f"{error.file}:{error.line}: {error}" for error in plugins.errors]
    return connector_pages(plugins) if noun == "connector" else processor_pages(plugins), broken


def _list(noun: str) -> Outcome:
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
            gives = [("out", text) for text in example.gives]
            print_table(console, ("", ""), [*example.settings.items(), ("in", example.given), *gives])
        console.print()
