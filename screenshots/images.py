"""From pipelines that run to pictures of them."""

from __future__ import annotations

import tempfile
from pathlib import Path

from screenshots.dagster_site import Site, dagster_site
from screenshots.project import Project
from screenshots.shots import SHOTS, browser_page, take

PORTIONS = (260, 140, 220, 180, 200)
"""Lines of orders for each run: the plots have as many points."""


def make_images(folder: Path, runs: int) -> list[Path]:
    """Run the project's pipelines in a Dagster of its own and take all pictures; return their files.

    ``runs``: how often ``orders`` runs, with a portion of its lines each time.
    """
    with tempfile.TemporaryDirectory(prefix="conduit-screenshots-", ignore_cleanup_errors=True) as temporary:
        project = Project(Path(temporary) / "project", PORTIONS[:runs])
        with dagster_site(project.root) as site:
            _run(project, site, runs)
            with browser_page() as page:
                return [take(page, site.url, shot, folder) for shot in SHOTS]


def _run(project: Project, site: Site, runs: int) -> None:
    others = [site.launch("payments"), site.launch("invoices")]
    for _ in range(runs):
        project.orders_arrive()
        site.wait_for(site.launch("orders"))
    for run in others:
        site.wait_for(run)
    site.wait_for_restart("payments")
