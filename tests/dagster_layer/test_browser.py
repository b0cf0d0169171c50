"""The dead-letter asset as a person sees it: Dagster's real UI in a headless Chromium."""

from __future__ import annotations

import re
from collections.abc import Iterator

import pytest
from dagster_layer.project_folder import Folder
from dagster_layer.web import launch, web_server
from lab.waiting import wait_until
from playwright.sync_api import Page, expect, sync_playwright

from screenshots.shots import chromium

CHROMIUM = chromium()
QUEUE = "{plugin: builtin:file, window-size: 0, open-limit: 3, settings: {path: ./dead.jsonl}}"
INSTANCE = """
nux: {enabled: false}
telemetry: {enabled: false}
run_coordinator: {module: dagster._core.run_coordinator.default_run_coordinator, class: DefaultRunCoordinator}
"""
PATIENCE = 60_000
"""Milliseconds."""

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(CHROMIUM is None, reason="no Chromium: apt-get install chromium"),
]


@pytest.fixture
def page() -> Iterator[Page]:
    """A browser's only tab."""
    with sync_playwright() as playwright:
        # without a sandbox: root has none
        browser = playwright.chromium.launch(executable_path=CHROMIUM, args=["--no-sandbox"])
        tab = browser.new_page(viewport={"width": 1600, "height": 1400})
        tab.set_default_timeout(PATIENCE)
        yield tab
        browser.close()


def test_the_dead_letter_asset_shows_its_table_and_its_check(folder: Folder, page: Page) -> None:
    folder.numbers(queue=QUEUE)
    with web_server(folder, INSTANCE) as url:
        launch(url, "numbers")
        wait_until(lambda: folder.ended("numbers"), "the pipeline has run", 120)
        page.goto(f"{url}/assets/numbers/dead_letters?view=checks")
        expect(page.get_by_text("open_dead_letters").first).to_be_visible(timeout=PATIENCE)
        page.get_by_text("open_dead_letters").first.click()
        expect(page.get_by_text("10 open; open-limit is 3").first).to_be_visible(timeout=PATIENCE)
        page.goto(f"{url}/assets/numbers/dead_letters?view=events")
        expect(page.get_by_text(re.compile("open: numbers:bad")).first).to_be_visible(timeout=PATIENCE)
        expect(page.get_by_text("a three").first).to_be_visible(timeout=PATIENCE)
        page.goto(f"{url}/assets/numbers/dead_letters?view=lineage")
        expect(page.get_by_text("replayed").first).to_be_visible(timeout=PATIENCE)
