"""Every rule of the model has a mutant of the real engine, and every mutant a test that catches it."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from engine.mutants.mutant_table import TABLE
from lab.support import SHARED

RULES = SHARED / "model" / "runs.py"


@pytest.mark.skipif(not RULES.exists(), reason="the model is not here")
def test_every_rule_of_the_model_is_among_them() -> None:
    text = RULES.read_text()
    fixes = re.search(r"^FIX = \((.*?)\)$", text, re.M)
    assert fixes is not None
    removed = re.findall(r'^    \("(\w+)", dict', text.partition("\nMUT = ")[2], re.M)
    assert set(TABLE) == {*re.findall(r"\w+", fixes.group(1)), *removed}


def test_every_mutant_is_caught() -> None:
    tests = "".join(path.read_text() for path in Path(__file__).parent.glob("test_*.py"))
    names = [mutant.__name__ for entry in TABLE.values() for mutant in entry.mutants]
    assert [name for name in names if not re.search(rf"\bwithout\.{name}\b", tests)] == []
