"""Rules across pipelines: no resource has two writing destinations, nor two sources if only one may read it.

Source: DELIVERY.md, Destinations.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING

from conduit_dagster.config.isolation import isolated
from conduit_dagster.config.parse import ParsedPipeline
from conduit_dagster.config.pipeline import Pipeline

if TYPE_CHECKING:
    from conduit_dagster.engine.bound_pipeline import BoundPipeline


def check_owners(pairs: Iterable[tuple[ParsedPipeline, BoundPipeline]]) -> None:
    """Add a finding for every resource with two owners."""
    owners: dict[str, str] = {}
    for parsed, bound in pairs:
        with isolated(parsed, "comparing what this pipeline writes and reads with others"):
            _check(parsed, bound, owners)
            _check_sources(parsed, bound, owners)


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


def _place_of(config: Pipeline, consumer: str) -> str:
    found = next((c for c in config.connectors if c.id == consumer), None)
    return f"{found.where}/settings" if found else "/dead-letter-queue"
