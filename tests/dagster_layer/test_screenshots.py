"""The pictures in the documentation: ``make screenshots`` creates each, and still finds what they show."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from lab.choice import in_matrix
from lab.modules import ROOT

from screenshots.images import make_images
from screenshots.shots import SHOTS, chromium

IMAGES = ROOT / "docs" / "images"
OTHERS = {"throughput.png"}
"""Those that ``make bench`` makes."""
PAGES = [ROOT / "README.md", *(ROOT / "docs").rglob("*.md")]
BYTES, BYTES_OF_ALL = 200_000, 800_000


def shown() -> set[str]:
    """The images shown on pages."""
    return {name for page in PAGES for name in re.findall(r"!\[[^\]]+\]\([\w/.]*images/([^)]+)\)", page.read_text())}


def test_each_image_that_is_shown_is_one_that_is_made_and_none_is_made_in_vain() -> None:
    assert shown() == {shot.name for shot in SHOTS} | OTHERS


def test_images_are_there_and_small() -> None:
    sizes = {path.name: path.stat().st_size for path in IMAGES.iterdir()}
    assert sizes.keys() == shown()
    assert max(sizes.values()) < BYTES
    assert sum(sizes.values()) < BYTES_OF_ALL


@pytest.mark.slow
@in_matrix
@pytest.mark.skipif(chromium() is None, reason="no Chromium: apt-get install chromium")
@pytest.mark.filterwarnings("ignore::DeprecationWarning:gql")  # of Dagster's client
def test_all_of_them_can_be_made(tmp_path: Path) -> None:
    """With one run of each pipeline."""
    files = make_images(tmp_path, 1)
    assert {file.name for file in files} == shown() - OTHERS
    assert all(0 < file.stat().st_size < BYTES for file in files)
