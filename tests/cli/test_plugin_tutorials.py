"""The tutorials for plugins as they are written: their files, their commands, and what they print."""

from __future__ import annotations

import os
import signal
import socket
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from lab.modules import ROOT
from lab.server_process import free_port
from lab.tutorial import Reader, expected, pieces
from lab.waiting import wait_until

FILES = {
    "writing-a-processor.md": {
        "plugins/phone_normalize.py",
        "data/customers.jsonl",
        "pipelines/customers.yaml",
        "tests/test_phone_normalize.py",
    },
    "writing-a-connector.md": {
        "tests/shop.py",
        "plugins/shop_api.py",
        "tests/test_shop_api.py",
        "pipelines/parcels.yaml",
    },
}
PORT = "8765"


def page(name: str) -> str:
    return (ROOT / "docs" / name).read_text(encoding="utf-8")


@pytest.fixture
def reader(folder: Path, connected: None) -> Iterator[Reader]:
    """A reader who closes the shop, however far the page came."""
    path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
    yield Reader(folder, {**os.environ, "PATH": path})
    for written in folder.rglob("shop.pid"):
        pid = int(written.read_text())
        if "tests/shop.py" in (Path(f"/proc/{pid}/cmdline").read_text() if Path(f"/proc/{pid}").exists() else ""):
            os.kill(pid, signal.SIGTERM)


@pytest.mark.slow
def test_the_processor_does_what_the_page_says(reader: Reader) -> None:
    for piece in pieces(page("writing-a-processor.md")):
        reader.do(piece)


@pytest.mark.slow
def test_the_connector_does_what_the_page_says(reader: Reader) -> None:
    text = page("writing-a-connector.md")
    port = free_port()
    for piece in pieces(text.replace(PORT, str(port))):
        reader.do(piece)
        if piece.kind == "run" and "tests/shop.py" in piece.text:
            wait_until(lambda: _answers(port), "the shop is open")


def _answers(port: int) -> bool:
    with socket.socket() as probe:
        return probe.connect_ex(("127.0.0.1", port)) == 0


@pytest.mark.parametrize("name", FILES)
def test_every_block_of_the_page_is_done(name: str) -> None:
    kinds = [piece.kind for piece in pieces(page(name))]
    assert 2 * (len(kinds) - kinds.count("run")) == page(name).count("```")
    assert {piece.name for piece in pieces(page(name)) if piece.name} == FILES[name]


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
