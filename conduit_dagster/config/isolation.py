"""Safety net of loading: an unexpected exception while one file is checked becomes a finding of that file.

Expected mistakes have their own rules. An exception that arrives here is a defect of this project, and must not keep
other files from being loaded.
"""

from __future__ import annotations

import traceback
from collections.abc import Generator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

from conduit_dagster.config.findings import Finding

if TYPE_CHECKING:
    from conduit_dagster.config.parse import ParsedPipeline

_PACKAGE = Path(__file__).parent.parent
_FIX = "report it with this file; conduit-dagster validate --debug shows the traceback. Other files are not affected"


@contextmanager
def isolated(parsed: ParsedPipeline, doing: str) -> Generator[None]:
    """Convert an exception into a finding of the pipeline, and suppress it."""
    try:
        yield
    except Exception as error:  # noqa: BLE001  # one file must not take the others down
        line, column = parsed.locate()
        parsed.findings.append(unexpected(error, doing, (parsed.file, line, column, parsed.pointer)))


def unexpected(error: Exception, doing: str, at: tuple[str, int, int, str]) -> Finding:
    """Return the finding for an unexpected exception; ``at``: file, line, column and pointer.

    The exception's own text is only in the traceback: it may quote a value from the environment.
    """
    message = f"{doing} failed unexpectedly: {type(error).__name__} in {_place(error)}"
    trace = "".join(traceback.format_exception(error))
    return Finding("config.check_failed", "error", *at, message, fix=_FIX, trace=trace)


def _place(error: Exception) -> str:
    """Return the innermost line of this project in the traceback."""
    frames = traceback.extract_tb(error.__traceback__)
    own = [frame for frame in frames if Path(frame.filename).is_relative_to(_PACKAGE)] or frames
    if not own:
        return "an unknown place"
    path = Path(own[-1].filename)
    name = path.relative_to(_PACKAGE.parent) if path.is_relative_to(_PACKAGE) else path
    return f"{name}:{own[-1].lineno}"
