"""``python -m screenshots [--into FOLDER] [--runs N]``."""

from __future__ import annotations

import argparse
import signal
import sys
from pathlib import Path

from screenshots.images import PORTIONS, make_images
from screenshots.shots import chromium

_IMAGES = Path(__file__).parents[1] / "docs" / "images"


def main() -> None:
    """Make the pictures and name them."""
    parser = argparse.ArgumentParser(prog="screenshots", description=__doc__)
    parser.add_argument("--into", type=Path, default=_IMAGES, metavar="FOLDER")
    parser.add_argument("--runs", type=int, default=len(PORTIONS), metavar="N", help="of the pipeline orders")
    arguments = parser.parse_args()
    if chromium() is None:
        raise SystemExit("no Chromium: apt-get install chromium")
    # processes started by then are ended as well
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))
    arguments.into.mkdir(parents=True, exist_ok=True)
    for file in make_images(arguments.into, arguments.runs):
        print(f"{file}  {file.stat().st_size // 1000} kB")


if __name__ == "__main__":
    main()
