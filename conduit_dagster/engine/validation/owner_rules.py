"""Rules across pipelines: no resource has two writing destinations, nor two sources if only one may read it.

Source: DELIVERY.md, Destinations.
"""

from __future__ import annotations

import os
from collections.abc import Iterable
from fnmatch import fnmatch
from pathlib import Path
from typing import TYPE_CHECKING

from conduit_dagster.config.findings import isolated
from conduit_dagster.config.parse import ParsedPipeline
from conduit_dagster.config.pipeline import Pipeline
from conduit_dagster.sdk import Source

if TYPE_CHECKING:
    from conduit_dagster.engine.bound_pipeline import BoundPipeline


def check_owners(pairs: Iterable[tuple[ParsedPipeline, BoundPipeline]]) -> None:
    """Add a finding for every resource with two owners."""
    owners: dict[str, str] = {}
    for parsed, bound in pairs:
        with isolated(parsed, "comparing what this pipeline writes and reads with others"):
            _check(parsed, bound, owners)
            _check_sources(parsed, bound, owners)
            _check_own_output(parsed, bound)


def _check(parsed: ParsedPipeline, bound: BoundPipeline, owners: dict[str, str]) -> None:
    for name, destination in bound.compiled.consumers().items():
        thing, who = destination.owned, f"{name} of pipeline {bound.id}"
        if thing is not None and owners.setdefault(thing, who) != who:
            message = f"{thing} is written by {owners[thing]} already"
            fix = "give each destination and dead-letter queue a path of its own"
            parsed.findings.append(parsed.finding(_place_of(bound.config, name), "destination.owned", message, fix=fix))


def _check_sources(parsed: ParsedPipeline, bound: BoundPipeline, owners: dict[str, str]) -> None:
    for node in bound.compiled.sources:
        thing, who = node.source.owned, f"{node.id} of pipeline {bound.id}"
        if thing is not None and owners.setdefault(thing, who) != who:
            message = f"the {thing} is read by {owners[thing]} already"
            fix = "give each source its own, in its settings"
            parsed.findings.append(parsed.finding(_place_of(bound.config, node.id), "source.owned", message, fix=fix))


def _check_own_output(parsed: ParsedPipeline, bound: BoundPipeline) -> None:
    """Warn of a source that reads what its own pipeline writes: every record would come again, and never end."""
    for node in bound.compiled.sources:
        path = path_of(node.source)
        for name, destination in bound.compiled.consumers().items():
            thing = destination.owned
            if path is None or thing is None or not is_read_with(thing, path) or _leaves_out(node.source, thing):
                continue
            message = f"{thing} is written by {name} and read by {node.id}: its records come again without end"
            fix = "write elsewhere, or leave the file out with the setting exclude"
            finding = parsed.finding(
                _place_of(bound.config, node.id), "source.own_output", message, severity="warning", fix=fix
            )
            parsed.findings.append(finding)


def path_of(source: Source) -> str | None:
    """Return the resolved path or glob that a source reads; None if it reads no local files."""
    path = source.unit.get("path")
    return os.path.realpath(path) if isinstance(path, str) and path.startswith("/") else None


def is_read_with(thing: str, path: str) -> bool:
    """Return whether a written file is the one read, lies in the folder read, or matches the glob read.

    A folder of parts, or of folders of them, may also be read by a glob.
    """
    # texts and not ``Path``: it is asked for each pair of pipelines
    in_folder = os.path.split(thing)[0] == path or (path.startswith(f"{thing}/") and "*" in path[len(thing) :])
    return thing == path or in_folder or fnmatch(thing, path)


def _leaves_out(source: Source, thing: str) -> bool:
    excluded: Iterable[str] = getattr(source.settings, "excluded", ())
    return Path(thing).name.startswith((".", "_")) or any(fnmatch(Path(thing).name, one) for one in excluded)


def _place_of(config: Pipeline, consumer: str) -> str:
    found = next((c for c in config.connectors if c.id == consumer), None)
    return f"{found.where}/settings" if found else "/dead-letter-queue"
