"""``init``: create a project or a plugin."""

from __future__ import annotations

import re
import shlex
from collections.abc import Mapping
from importlib.resources import files
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Final

import typer

from conduit_dagster.cli.verb import Outcome, current_project, usage_error, verb
from conduit_dagster.config.findings import nearest
from conduit_dagster.recovery.errors import from_os_error

if TYPE_CHECKING:
    from rich.console import Console

Folder = Annotated[
    Path,
    typer.Argument(
        metavar="[DIR|connector|processor]", help="The folder (created if it is missing), or what to create."
    ),
]
Name = Annotated[str | None, typer.Argument(metavar="[NAME]", help="The connector's or processor's name.")]

_PLUGINS: Final = ("connector", "processor")
_NAME: Final = re.compile("[a-z][a-z0-9]*([.-][a-z0-9]+)*")
# template to target path; template names have no leading dot, so that packages include them
_FILES: Final = {
    "conduit.yaml": "conduit.yaml",
    "first.yaml": "pipelines/first.yaml",
    "people.jsonl": "data/people.jsonl",
    "plugins.md": "plugins/README.md",
    "gitignore": ".gitignore",
}


@verb("init")
def init(folder: Folder = Path(), name: Name = None) -> Outcome:
    """Create a project with a first pipeline that runs, or a plugin to start from: init processor NAME.

    Existing files are kept.
    """
    return _made(folder) if name is None else _plugin(str(folder), name)


def write_project(folder: Path) -> tuple[list[str], list[str]]:
    """Write the files of a project with a first pipeline; return the names of new and of kept files."""
    created: list[str] = []
    kept: list[str] = []
    for template, name in _FILES.items():
        (created if _write(folder / name, template) else kept).append(name)
    return created, kept


def _made(folder: Path) -> Outcome:
    if str(folder) in _PLUGINS:
        fix = f"init {folder} NAME; for a project in a folder of that name, give its full path"
        raise usage_error(f"init {folder} needs a name", "init", fix)
    created, kept = write_project(folder)
    enter = [] if folder.absolute() == Path.cwd() else [f"cd {shlex.quote(str(folder))}"]
    following = [
        *enter,
        "conduit-dagster validate",
        "conduit-dagster run --once",
        "conduit-dagster pipelines list",
    ]
    result = {"folder": str(folder.absolute()), "created": created, "kept": kept, "next": following}
    summary = f"{len(created)} files written, {len(kept)} kept"
    return Outcome(summary, result, show=lambda console: _show(console, created, kept, following))


def _plugin(kind: str, name: str) -> Outcome:
    if kind not in _PLUGINS:
        fix = f"init {nearest(kind, _PLUGINS) or 'connector|processor'} {name}"
        raise usage_error(f"init makes a connector or a processor, not a {kind}", "init", fix)
    if not _NAME.fullmatch(name):
        fix = "small letters, digits, dots and hyphens, such as trim.text"
        raise usage_error(f"{name} is not a valid plugin name", "plugin_name", fix)
    words, root = re.split(r"[^a-z0-9]+", name), current_project().root
    module = "_".join(words)
    path, test = root / "plugins" / f"{module}.py", root / "tests" / f"test_{module}.py"
    marks = {"@NAME@": name, "@MODULE@": module, "@CLASS@": "".join(word.capitalize() for word in words)}
    if not _write(path, f"new_{kind}.txt", marks):
        raise usage_error(f"{path} already exists", "file_exists", "take another name")
    created = [str(path), *([str(test)] if _write(test, f"new_{kind}_test.txt", marks) else [])]
    following = [f"conduit-dagster {kind}s describe {name}", f"pytest {test.relative_to(root)}"]
    result = {"file": str(path), "test": str(test), "next": following}
    return Outcome(f"{kind} {name} in {path}", result, show=lambda console: _show(console, created, [], following))


def _write(path: Path, template: str, marks: Mapping[str, str] | None = None) -> bool:
    """Write a file and return whether it is new; an existing file or link is never touched."""
    content = files("conduit_dagster.cli").joinpath("templates", template).read_bytes()
    for mark, text in (marks or {}).items():
        content = content.replace(mark.encode(), text.encode())
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        with path.open("xb") as file:
            file.write(content)
    except FileExistsError:
        if path.parent.is_dir():
            return False
        raise from_os_error(NotADirectoryError(20, "", str(path.parent)), "can't make the project") from None
    except OSError as error:
        raise from_os_error(error, "can't make the project") from error
    return True


def _show(console: Console, created: list[str], kept: list[str], following: list[str]) -> None:
    for name in created:
        console.print(f"  wrote {name}")
    for name in kept:
        console.print(f"  kept  {name}")
    console.print("\nnext:")
    for command in following:
        console.print(f"  {command}")
    console.print()
