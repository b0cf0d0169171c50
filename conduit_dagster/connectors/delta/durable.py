"""Durability of a local table's log, which the library does not sync."""

from __future__ import annotations

import json
from pathlib import Path

from conduit_dagster.state import storage


class LogSync:
    """Syncs log entries once each: another writer's too, for ours is worth nothing behind a lost one."""

    def __init__(self, root: Path | None) -> None:
        self._log = None if root is None else root / "_delta_log"
        self._upto = -1

    def sync(self, version: int) -> None:
        """The entries up to ``version``, and the checkpoint that a reader would start from. Local tables only."""
        if self._log is None:
            return
        checkpoint = self._checkpoint(self._log)
        known = self._upto if self._upto <= version else -1  # a table made anew counts from 0
        for at in range(max(checkpoint, known + 1), version + 1):
            self._one(self._log / f"{at:020d}.json")
        self._one(self._log / f"{checkpoint:020d}.checkpoint.parquet")
        self._one(self._log / "_last_checkpoint")
        storage.sync(str(self._log))
        storage.sync(str(self._log.parent))
        self._upto = version

    def _one(self, path: Path) -> None:
        if path.exists():
            storage.sync(str(path))

    def _checkpoint(self, log: Path) -> int:
        try:
            return int(json.loads((log / "_last_checkpoint").read_bytes())["version"])
        except (FileNotFoundError, KeyError, ValueError):
            return 0
