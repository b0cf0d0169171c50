"""Logging, always to stderr, so that stdout contains only a verb's result."""

from __future__ import annotations

import os
import sys
from typing import TYPE_CHECKING, Any, Final

import structlog

from conduit_dagster.secret_values import hide, hide_in

if TYPE_CHECKING:
    from conduit_dagster.config.project_settings import LogSettings

_LEVELS: Final = {"trace": 0, "debug": 10, "info": 20, "warn": 30, "error": 40}


class _Stderr:
    """The current ``sys.stderr``, which a live display replaces with its own; secrets are masked."""

    def write(self, text: str) -> int:
        return sys.stderr.write(hide(text))

    def flush(self) -> None:
        sys.stderr.flush()


def configure_logs(settings: LogSettings) -> None:
    """Apply the project's settings. Call it first: loggers that are already bound keep the old ones."""
    structlog.configure(
        processors=[
            structlog.contextvars.merge_contextvars,
            structlog.processors.add_log_level,
            structlog.processors.TimeStamper(fmt="iso", utc=True),
            *_rendering(settings.format),
        ],
        wrapper_class=structlog.make_filtering_bound_logger(_LEVELS[settings.level]),
        logger_factory=structlog.WriteLoggerFactory(file=_Stderr()),  # pyright: ignore[reportArgumentType]
    )


def _hidden(_logger: Any, _method: str, event: Any) -> Any:
    # before encoding as JSON: a value may look like a part of an escape
    return hide_in(event)


def _rendering(kind: str) -> list[Any]:
    if kind == "json":
        return [structlog.processors.format_exc_info, _hidden, structlog.processors.JSONRenderer()]
    colors = sys.stderr.isatty() and not os.environ.get("NO_COLOR")
    return [structlog.dev.ConsoleRenderer(colors=colors, exception_formatter=structlog.dev.plain_traceback)]
