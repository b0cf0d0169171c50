"""``python -m conduit_dagster.cli.reference_pages FOLDER``: write the reference, one page per subject."""

from __future__ import annotations

import sys
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path

from conduit_dagster.cli.description_text import ExampleText
from conduit_dagster.cli.reference import Page, Setting, connector_pages, processor_pages, section_pages
from conduit_dagster.cli.verb import INVALID, OK
from conduit_dagster.engine.plugin_loading import Plugins

_MADE_BY = "<!-- made by python -m conduit_dagster.cli.reference_pages docs/reference; edits are lost -->"


def reference_pages() -> dict[str, str]:
    """Return the content of the pages by file name, for everything built in."""
    none = Plugins()
    return {
        "connectors.md": _document("Connectors", connector_pages(none)),
        "processors.md": _document("Processors", processor_pages(none)),
        "pipeline-file.md": _document("The pipeline file", section_pages()),
    }


def _document(title: str, pages: Iterable[Page]) -> str:
    lines = [_MADE_BY, "", f"# {title}", ""]
    for page in pages:
        lines += _page(page)
    return "\n".join(lines)


def _page(page: Page) -> Iterator[str]:
    yield f"## {page.name}{'' if page.kind in ('section', 'processor') else f' ({page.kind})'}"
    yield ""
    yield page.text
    yield ""
    if page.settings:
        yield "| setting | type | default | description |"
        yield "|---|---|---|---|"
        yield from map(_row, page.settings)
        yield ""
    for note in page.notes:
        yield note
        yield ""
    for example in page.examples:
        yield from _example(example)


def _example(example: ExampleText) -> Iterator[str]:
    settings = ", ".join(f"`{key}: {value}`" for key, value in example.settings.items())
    yield f"{example.title}{': ' if settings else ''}{settings}"
    yield ""
    yield f"    in   {example.given}"
    yield from (f"    out  {text}" for text in example.gives)
    yield ""


def _row(setting: Setting) -> str:
    default = "*required*" if setting.required else f"`{setting.default}`" if setting.default else ""
    cells = (f"`{setting.name}`", setting.type, default, setting.description)
    return "| " + " | ".join(cell.replace("|", "\\|") for cell in cells) + " |"


def main(arguments: Sequence[str]) -> int:
    """Write the pages into the given folder."""
    if len(arguments) != 1:
        print("usage: python -m conduit_dagster.cli.reference_pages FOLDER", file=sys.stderr)
        return INVALID
    folder = Path(arguments[0])
    folder.mkdir(parents=True, exist_ok=True)
    for name, content in reference_pages().items():
        (folder / name).write_text(content, encoding="utf-8")
        print(folder / name)
    return OK


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
