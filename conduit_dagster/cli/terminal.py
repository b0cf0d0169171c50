"""Output of the command line: consoles with colour and live display only on a terminal, tables and times; log lines.

Log lines always go to stderr, so that stdout contains only a verb's result.
"""

from __future__ import annotations

import os
import sys
from typing import TYPE_CHECKING, Any, Final, TextIO, cast

from rich.cells import cell_len
from rich.console import Console
from rich.table import Table
from rich.text import Text

from conduit_dagster.secret_values import HidingStream, hide, hide_in

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from conduit_dagster.config.project_settings import LogSettings

# a table in a pipe is read by the next program: nothing is truncated or wrapped
_UNBOUNDED = 10_000
_READABLE = 24
"""Width of a cell on a terminal below which its text is not folded."""
_STYLES = {
    "running": "green",
    "ok": "green",
    "recovering": "yellow",
    "warning": "yellow",
    "warn": "yellow",
    "degraded": "red",
    "error": "red",
    "fail": "red",
}


def console(stream: TextIO | None = None) -> Console:
    """Return a console on stdout, or on ``stream``, that masks secrets of settings."""
    stream = sys.stdout if stream is None else stream
    terminal = stream is not None and stream.isatty()
    return Console(
        file=None if stream is None else cast("TextIO", HidingStream(stream)),
        # pinned, because FORCE_COLOR would otherwise put escapes into pipes
        force_terminal=terminal,
        color_system="auto" if terminal and not os.environ.get("NO_COLOR") else None,
        width=None if terminal else _UNBOUNDED,
        highlight=False,
        markup=False,
        emoji=False,
        soft_wrap=not terminal,
    )


def styled(word: str, text: str | None = None) -> Text:
    """Return ``text`` in the colour of a status or severity."""
    return Text(word if text is None else text, style=_STYLES.get(word, ""))


def print_table(to: Console, columns: Sequence[str], rows: Iterable[Sequence[Any]]) -> None:
    """Print a table; in a pipe, without trailing blanks."""
    if to.is_terminal:
        made = table(columns, rows)
        # a narrow terminal wraps whole lines, where columns of a few characters each can't be read
        to.print(made, width=max(to.width, to.measure(made).minimum), crop=False)
        return
    with to.capture() as captured:
        to.print(table(columns, rows))
    to.print("\n".join(line.rstrip() for line in captured.get().splitlines()))


def table(columns: Sequence[str], rows: Iterable[Sequence[Any]]) -> Table:
    """Return a table without lines."""
    made = Table(box=None, pad_edge=False, padding=(0, 3, 0, 0), header_style="bold", show_edge=False)
    cells = [[cell if isinstance(cell, Text) else Text(str(cell)) for cell in row] for row in rows]
    for number, column in enumerate(columns):
        longest = max([cell_len(column), *(row[number].cell_len for row in cells)])
        made.add_column(column, overflow="fold", min_width=min(longest, _READABLE))
    for row in cells:
        made.add_row(*row)
    return made


def print_error(to: Console, error: dict[str, Any], indent: str = "") -> None:
    """Print an error on one line, with node, place and fix below it if known."""
    line = Text.assemble(indent, ("error", _STYLES["error"]), f" {error['code']}: {error['message']}")
    to.print(line)
    for name in ("node", "place", "fix"):
        if error.get(name):
            to.print(f"{indent}  {name + ':':<8}{error[name]}")


_UNITS = ((86_400, "d"), (3_600, "h"), (60, "min"), (1, "s"))
_LATE = 60.0


def span(seconds: float) -> str:
    """Return a duration in its largest whole unit: ``40 s``, ``5 min``, ``3 h``, ``12 d``."""
    whole = max(0, round(seconds))
    size, name = next((one for one in _UNITS if whole >= one[0]), _UNITS[-1])
    return f"{whole // size} {name}"


def ago(at_ns: int, now_ns: int) -> str:
    """Return how long ago it was: ``5 min ago``; empty for 0, which means never."""
    return f"{span((now_ns - at_ns) / 1e9)} ago" if at_ns else ""


def due(at_ns: int, now_ns: int) -> str:
    """Return when it is due: ``in 40 s``, ``now``, or, once a minute has passed, ``due 5 min ago``."""
    if at_ns > now_ns:
        return f"in {span((at_ns - now_ns) / 1e9)}"
    return f"due {ago(at_ns, now_ns)}" if is_late(at_ns, now_ns) else "now"


def is_late(at_ns: int, now_ns: int) -> bool:
    """Return whether it should have happened a minute ago."""
    return now_ns - at_ns >= _LATE * 1e9


_LEVELS: Final = {"trace": 0, "debug": 10, "info": 20, "warn": 30, "error": 40}


class _Stderr:
    """The current ``sys.stderr``, which a live display replaces with its own; secrets are masked."""

    def write(self, text: str) -> int:
        return sys.stderr.write(hide(text))

    def flush(self) -> None:
        sys.stderr.flush()


def configure_logs(settings: LogSettings) -> None:
    """Apply the project's settings. Call it first: loggers that are already bound keep the old ones."""
    import structlog  # imported late: read-only commands log nothing

    own = structlog.processors
    if settings.format == "json":
        # hidden before encoding as JSON: a value may look like a part of an escape
        rendering: list[Any] = [own.format_exc_info, lambda _logger, _name, event: hide_in(event), own.JSONRenderer()]
    else:
        colors = sys.stderr.isatty() and not os.environ.get("NO_COLOR")
        rendering = [structlog.dev.ConsoleRenderer(colors=colors, exception_formatter=structlog.dev.plain_traceback)]
    structlog.configure(
        processors=[
            structlog.contextvars.merge_contextvars,
            own.add_log_level,
            own.TimeStamper(fmt="iso", utc=True),
            *rendering,
        ],
        wrapper_class=structlog.make_filtering_bound_logger(_LEVELS[settings.level]),
        logger_factory=structlog.WriteLoggerFactory(file=_Stderr()),  # pyright: ignore[reportArgumentType]
    )
