"""The page ``docs/writing-a-processor.md`` as it is written: its files, its commands, and what they print."""

from __future__ import annotations

import os
import sys
from pathlib import Path

import pytest
from lab.modules import ROOT
from lab.tutorial import Reader, expected, pieces

PAGE = (ROOT / "docs" / "writing-a-processor.md").read_text(encoding="utf-8")


@pytest.mark.slow
@pytest.mark.usefixtures("connected")
def test_the_page_does_what_it_says(folder: Path) -> None:
    path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
    reader = Reader(folder, {**os.environ, "PATH": path})
    for piece in pieces(PAGE):
        reader.do(piece)


def test_every_block_of_the_page_is_done() -> None:
    kinds = [piece.kind for piece in pieces(PAGE)]
    assert 2 * (len(kinds) - kinds.count("run")) == PAGE.count("```")
    names = {piece.name for piece in pieces(PAGE) if piece.name}
    assert names == {
        "plugins/phone_normalize.py",
        "data/customers.jsonl",
        "pipelines/customers.yaml",
        "tests/test_phone_normalize.py",
    }


@pytest.mark.parametrize(
    ("shown", "printed", "fits"),
    [
        ("a\n", "a  \n", True),
        ("a\n", "b\n", False),
        ("a … c\n", "a b b c\n", True),
        ("a\n…\nd\n", "a\nb\nc\nd\n", True),
        ("a\n", "a\nb\n", False),
    ],
)
def test_what_is_shown_is_compared(shown: str, printed: str, fits: bool) -> None:
    assert bool(expected(shown).fullmatch(printed)) == fits
