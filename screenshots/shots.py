"""The pages that are shown, and what must be on them by then."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from io import BytesIO
from pathlib import Path

from PIL import Image
from playwright.sync_api import Page, expect, sync_playwright

_PATIENCE = 60_000
"""Milliseconds."""
_LOOKS = 100
_COLOURS = 256
_CODE = "/locations/conduit"


@dataclass(frozen=True)
class Shot:
    """A picture: its file, the page, a window of ``height``, and texts that must be visible."""

    name: str
    path: str
    height: int
    texts: tuple[str, ...]
    click: str | None = None
    """A button that is pressed before."""


SHOTS = (
    Shot("lineage.png", f"{_CODE}/asset-groups/orders/lineage", 640, ("paid", "large", "2 / 3 Passed", "3 / 3 Passed")),
    Shot("acks.png", "/assets/orders/acks?view=overview", 1065, ("records_acked", "records_filtered"), "Plots"),
    Shot("restart.png", f"{_CODE}/jobs/payments/runs", 560, ("Failure", "Success", "conduit/attempt: 1")),
    Shot("status.png", "/assets/invoices/acks?view=checks&checkDetail=status", 780, ("error_code", "fix")),
    Shot("dead-letters.png", "/assets/orders/dead_letters?view=events", 760, ("newest", "orders:decode")),
)


def chromium() -> str | None:
    """Return the path of an installed Chromium."""
    return shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")


@contextmanager
def browser_page() -> Iterator[Page]:
    """A browser's only tab, with times in UTC."""
    with sync_playwright() as playwright:
        # without a sandbox: root has none
        browser = playwright.chromium.launch(executable_path=chromium(), args=["--no-sandbox"])
        page = browser.new_page(timezone_id="UTC", locale="en-GB", reduced_motion="reduce")
        page.set_default_timeout(_PATIENCE)
        yield page
        browser.close()


def take(page: Page, url: str, shot: Shot, folder: Path) -> Path:
    """Take a picture once the page shows what it must and stands still; return its file."""
    page.set_viewport_size({"width": 1400, "height": shot.height})
    page.goto(url + shot.path)
    if shot.click is not None:
        page.get_by_text(shot.click, exact=True).click()
    for text in shot.texts:
        expect(page.get_by_text(text, exact=True).first).to_be_visible(timeout=_PATIENCE)
    page.wait_for_load_state("networkidle")
    file = folder / shot.name
    with Image.open(BytesIO(_at_rest(page))) as image:
        # less than half the size; the method keeps colours that are rare, such as a warning's
        few = image.convert("RGB").quantize(_COLOURS, Image.Quantize.MAXCOVERAGE, dither=Image.Dither.NONE)
        few.save(file, optimize=True)
    return file


def _at_rest(page: Page) -> bytes:
    before = b""
    for _ in range(_LOOKS):
        now = page.screenshot(animations="disabled")
        if now == before:
            return now
        before = now
    raise TimeoutError(f"{page.url} does not stand still")
