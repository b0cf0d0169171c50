"""``python -m conduit_dagster.cli.reference_pages FOLDER``: writes the reference, one page per subject."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from pathlib import Path

from conduit_dagster.cli.markdown import reference_pages
from conduit_dagster.cli.outcome import INVALID, OK


def main(arguments: Sequence[str]) -> int:
    """Writes the pages into the named folder."""
    if len(arguments) != 1:
        print("usage: python -m conduit_dagster.cli.reference_pages FOLDER", file=sys.stderr)
        return INVALID
    folder = Path(arguments[0])
    folder.mkdir(parents=True, exist_ok=True)
    for name, content in reference_pages().items():
        (folder / name).write_text(content, encoding="utf-8")
        print(folder / name)
    return OK


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
