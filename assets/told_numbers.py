"""Lasting numbers, such as totals over all runs, that the newest materialisations of a pipeline's assets show."""

from __future__ import annotations

from collections.abc import Iterable

import dagster as dg

_LASTING = ("_all_runs", "open")
"""Ends of the names of numbers that no run begins anew."""


def are_told(instance: dg.DagsterInstance, events: Iterable[dg.AssetMaterialization]) -> bool:
    """Return whether the newest materialisation of each asset shows the lasting numbers of these events already.

    False after a run that was killed before it could tell what it had moved, and for an asset without any.
    """
    return all(_lasting(event) == _told(instance, event.asset_key) for event in events)


def _told(instance: dg.DagsterInstance, key: dg.AssetKey) -> dict[str, object] | None:
    newest = instance.get_latest_materialization_event(key)
    event = None if newest is None else newest.asset_materialization
    return None if event is None else _lasting(event)


def _lasting(event: dg.AssetMaterialization) -> dict[str, object]:
    return {name: value.value for name, value in event.metadata.items() if name.endswith(_LASTING)}
