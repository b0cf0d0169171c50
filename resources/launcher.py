"""Run launcher for ``dagster.yaml``: warm runs, or Dagster's own launcher if its version lacks the required names."""

from __future__ import annotations

import structlog
from dagster import DefaultRunLauncher

log = structlog.get_logger("conduit.launcher")


def _launcher() -> type[DefaultRunLauncher]:
    try:
        from conduit_dagster.resources import warm_launcher
    # warm runs need names that Dagster does not guarantee; without them runs start three seconds later
    except ImportError as error:
        log.warning("runs are launched by Dagster itself", cause=str(error))
        return DefaultRunLauncher
    return warm_launcher.WarmRunLauncher


WarmRunLauncher = _launcher()
