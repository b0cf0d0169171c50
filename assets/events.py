"""The materialisations of a run: numbers that plot, positions, nacks by reason, the newest dead letters."""

from __future__ import annotations

import json
from collections.abc import Iterator
from datetime import UTC, datetime
from typing import Any

import dagster as dg

from assets.look import Look
from assets.names import ACKS, asset_key
from conduit_dagster.engine.compiled import DEAD_LETTERS
from conduit_dagster.engine.planner import BoundPipeline
from conduit_dagster.state.dead_letters import letter_id
from conduit_dagster.state.history import Event, said

_ROW_COUNT = "dagster/row_count"
_PLOTS = 10
_LONGEST_TEXT = 200
_LONGEST_POSITION = 1_000

Metadata = dict[str, Any]


def materializations(bound: BoundPipeline, look: Look) -> Iterator[dg.AssetMaterialization]:
    """One event per asset, upstream first and the acks last: else Dagster shows some as out of date."""
    for source in bound.config.sources:
        yield _event(bound, source.id, _source(source.id, look))
    for destination in bound.config.destinations:
        yield _event(bound, destination.id, _destination(destination.id, look))
    yield _event(bound, DEAD_LETTERS, _dead_letters(look))
    yield _event(bound, ACKS, _acks(look))


def _event(bound: BoundPipeline, name: str, metadata: Metadata) -> dg.AssetMaterialization:
    return dg.AssetMaterialization(asset_key(bound.id, name), metadata=metadata)


def _source(source: str, look: Look) -> Metadata:
    row = look.sources.get(source, {})
    lag = look.lag.get(source)
    return {
        "records_read": look.progress.sources.get(source, 0),
        "records_read_all_runs": row.get("records", 0),
        "position": _position(row.get("position")),
        **({f"lag_{lag[1]}": lag[0]} if lag else {}),
    }


def _destination(destination: str, look: Look) -> Metadata:
    return {
        "records_delivered": look.progress.delivered.get(destination, 0),
        _ROW_COUNT: look.consumers.get(destination, {}).get("delivered", 0),
        "batch_seconds": round(look.batch_seconds, 3),
    }


def _dead_letters(look: Look) -> Metadata:
    return {
        "open": look.open,
        "open_growth": look.open - look.open_before,
        "records_dead_lettered": look.progress.dead_lettered,
        _ROW_COUNT: look.consumers.get(DEAD_LETTERS, {}).get("delivered", 0),
        "newest": _newest(look.letters),
        "nacks_by_reason": _reasons(look.progress.nacked_by),
        **open_by_reason(look.reasons),
    }


def open_by_reason(reasons: list[dict[str, Any]]) -> Metadata:
    """A number per reason, which plots; the most frequent ones."""
    return {f"open: {row['node']} {row['code']}": row["letters"] for row in reasons[:_PLOTS]}


def _acks(look: Look) -> Metadata:
    progress = look.progress
    return {
        "records_read": progress.read,
        "records_acked": progress.acked,
        "records_filtered": progress.filtered,
        "records_nacked": progress.nacked,
        "records_dead_lettered": progress.dead_lettered,
        "batch_seconds": round(look.batch_seconds, 3),
        "steps": progress.steps,
        **_lags(look),
        "positions": _position({source: row["position"] for source, row in look.sources.items()}),
        "nacks_by_reason": _reasons(progress.nacked_by),
        "history": _history(look.history),
    }


def _history(events: list[Event]) -> dg.TableMetadataValue:
    rows: list[dict[str, str | int | float]] = [
        {"time": _time(event.at_ns), "event": said(event.event, event.detail)} for event in reversed(events)
    ]
    return _table({"time": "string", "event": "string"}, rows)


def _lags(look: Look) -> Metadata:
    """The sum per unit: bytes and records do not add up."""
    total: dict[str, int] = {}
    for amount, unit in look.lag.values():
        total[f"lag_{unit}"] = total.get(f"lag_{unit}", 0) + amount
    return total


def _position(value: Any) -> Any:
    """A number plots. Other positions are the connector's own and may be long; every event carries them."""
    if isinstance(value, int | float | str | None):
        return _cell(value)
    text = json.dumps(value)
    if len(text) > _LONGEST_POSITION:
        return dg.MetadataValue.text(f"{text[:_LONGEST_POSITION]}…")
    return dg.MetadataValue.json(value)


def _reasons(nacked_by: dict[str, int]) -> dg.TableMetadataValue:
    rows: list[dict[str, str | int | float]] = []
    for reason, number in sorted(nacked_by.items(), key=lambda item: -item[1]):
        node, _, code = reason.rpartition(" ")
        rows.append({"node": node, "code": code, "records": number})
    return _table({"node": "string", "code": "string", "records": "int"}, rows)


def _newest(letters: list[dict[str, Any]]) -> dg.TableMetadataValue:
    # the UI cuts wide tables off at the right
    names = ("message", "node", "source", "offset", "position", "code")
    rows = [
        {"time": _time(row["at_ns"]), **{name: _cell(row[name]) for name in names}, "id": letter_id(row)}
        for row in letters
    ]
    kinds = {name: "int" if name == "offset" else "string" for name in ("time", *names, "id")}
    return _table(kinds, rows)


def _table(columns: dict[str, str], rows: list[dict[str, str | int | float]]) -> dg.TableMetadataValue:
    # an empty table has nothing that its columns could be told from
    schema = dg.TableSchema([dg.TableColumn(name, kind) for name, kind in columns.items()])
    return dg.MetadataValue.table([dg.TableRecord(row) for row in rows], schema)


def _cell(value: Any) -> str | int | float:
    return value if isinstance(value, int | float) else str(value)[:_LONGEST_TEXT]


def _time(at_ns: int) -> str:
    return datetime.fromtimestamp(at_ns / 1e9, UTC).isoformat(sep=" ", timespec="seconds")
