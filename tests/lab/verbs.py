"""A command of the command line, run in this process or in one of its own, and what it left behind."""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import Any

import pytest

from conduit_dagster.cli.main import main


@dataclass
class Ran:
    """What a command left behind."""

    code: int
    out: str
    err: str

    @property
    def envelope(self) -> dict[str, Any]:
        """The one line of ``--json``."""
        assert self.out.count("\n") == 1, self.out
        envelope = json.loads(self.out)
        assert list(envelope) == ["command", "ok", "summary", "result", "error"]
        assert envelope["ok"] == (self.code == 0)
        return envelope


def run_here(capsys: pytest.CaptureFixture[str], *words: str) -> Ran:
    """Run a command in this process."""
    capsys.readouterr()
    code = main(words)
    said = capsys.readouterr()
    return Ran(code, said.out, said.err)
