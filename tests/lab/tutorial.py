"""A page of the documentation that is a tutorial: files to write, commands to run, and their output, in order.

A block with a language is a file, named by the last word in backquotes before it; after the word *Append* it is
appended to the file. An indented block holds commands. A block without a language is the complete output of the
commands before it, and ``…`` matches anything within a line; alone on a line, any lines.
"""

from __future__ import annotations

import re
import subprocess
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

_BLOCK = re.compile(r"^```(?P<language>\w*)\n(?P<text>.*?)^```$|(?P<commands>(?:^ {4}\S[^\n]*\n)+)", re.M | re.S)
_NAME = re.compile(r"`([\w./-]+)`")
_YAML = re.compile(r"^```yaml\n(.*?)^```$", re.M | re.S)
_ID = re.compile(r"^  - id: (\S+)$", re.M)


class Piece(NamedTuple):
    """A block of the page: ``kind`` is ``write``, ``append``, ``run`` or ``prints``."""

    kind: str
    text: str
    name: str = ""


def pieces(page: str) -> Iterator[Piece]:
    """Yield the instructions of the page, and the expected output."""
    for match in _BLOCK.finditer(page):
        lead = page[: match.start()].rstrip().rpartition("\n\n")[2]
        if match["commands"]:
            yield Piece("run", re.sub("^ {4}", "", match["commands"], flags=re.M))
        elif match["language"]:
            kind = "append" if re.search(r"\bAppend\b", lead) else "write"
            yield Piece(kind, match["text"], _NAME.findall(lead)[-1])
        else:
            yield Piece("prints", match["text"])


def pipeline_of(page: str, pipeline: str) -> str:
    """Return the text of the file on a page that begins with the pipeline of this id."""
    [found] = [piece for piece in _YAML.findall(page) if _ID.findall(piece)[:1] == [pipeline]]
    return found


@dataclass
class Reader:
    """Follows the page's instructions in a folder; a ``cd`` in one block applies to the next."""

    folder: Path
    env: Mapping[str, str]
    printed: str = ""

    def do(self, piece: Piece) -> None:
        if piece.kind == "run":
            self.printed = self._run(piece.text)
        elif piece.kind == "prints":
            assert expected(piece.text).fullmatch(self.printed), f"shown:\n{piece.text}\nprinted:\n{self.printed}"
        else:
            self._write(piece)

    def _run(self, commands: str) -> str:
        where = self.folder / ".where"
        script = f"set -e\n{commands}\npwd > '{where}'\n"
        ran = subprocess.run(
            ["bash", "-c", script],
            cwd=self.folder,
            env=self.env,
            capture_output=True,
            text=True,
            timeout=240,
            check=False,
        )
        assert ran.returncode == 0, f"{commands}\n{ran.stdout}\n{ran.stderr}"
        self.folder = Path(where.read_text().strip())
        where.unlink()
        return ran.stdout

    def _write(self, piece: Piece) -> None:
        path = self.folder / piece.name
        path.parent.mkdir(parents=True, exist_ok=True)
        with path.open("a" if piece.kind == "append" else "w", encoding="utf-8") as file:
            file.write(piece.text)


def expected(shown: str) -> re.Pattern[str]:
    """Return a pattern for the expected output; blanks at the ends of lines don't count."""
    lines = [_line(line) for line in shown.rstrip("\n").split("\n")]
    return re.compile("".join(lines) + r"\s*")


def _line(line: str) -> str:
    if line == "…":
        return r"(?:[^\n]*\n)*?"
    return r"[^\n]*?".join(re.escape(part) for part in line.split("…")) + r"[ ]*\n"
