"""Contents of a destination after a run: number of rows, a preview with redacted columns masked, column lineage.

Dagster shows them at the destination's asset. They are queried after the records were moved and never fail a run.
"""

import json
from collections.abc import Collection, Mapping, Sequence
from contextlib import suppress
from itertools import chain
from typing import Any

import dagster as dg
import structlog

from conduit_dagster.assets.translator import AssetKeys
from conduit_dagster.engine.bounded import within
from conduit_dagster.engine.compiled_pipeline import CompiledPipeline, DestinationNode
from conduit_dagster.engine.nodes import Step
from conduit_dagster.engine.redaction import MASK
from conduit_dagster.field_reference import Reference
from conduit_dagster.secret_values import hide

log = structlog.get_logger("conduit.dagster")
_ROWS = 5
_SECONDS = 2.0
_LONGEST = 200
Metadata = dict[str, Any]


class ContentsView:
    """View of the contents of a pipeline's destinations."""

    def __init__(self, pipeline: CompiledPipeline, keys: AssetKeys) -> None:
        """``pipeline``: not the instance that a run uses, whose connections are busy."""
        self._pipeline, self._keys = pipeline, keys
        self._hangs = False

    def metadata(self) -> dict[str, Metadata]:
        """Return the metadata of each destination, by id. Takes two seconds at most, even if one does not answer."""
        found: dict[str, Metadata] = {}
        if not self._hangs:
            name = f"preview of {self._pipeline.program.pipeline}"
            self._hangs = not within(lambda: self._ask(found), _SECONDS, name)
        return {node.id: {} for node in self._pipeline.outputs} | dict(found)

    def _ask(self, found: dict[str, Metadata]) -> None:
        for node in self._pipeline.outputs:
            destination = node.destination
            try:
                found[node.id] = self._of(node, destination.row_count(), destination.preview(_ROWS))
            except Exception as error:  # noqa: BLE001  # whatever it raises here, its records are delivered
                log.debug("a destination has no preview", node=node.node, cause=hide(str(error)))
            finally:
                with suppress(Exception):
                    destination.close()

    def _of(self, node: DestinationNode, number: int | None, rows: Sequence[Mapping[str, Any]]) -> Metadata:
        declared = (name for name, _ in node.destination.declared_columns)
        columns = {name: node.destination.field_of(name) for name in chain(declared, *rows)}
        paths = {one.id: [*one.nodes, *self._pipeline.nodes, *node.nodes] for one in self._pipeline.sources}
        facts: Metadata = {} if number is None else {"dagster/row_count": number}
        # a join puts all fields of a source into one field named after the source
        is_join = self._pipeline.program.fan_in == "join"
        lineage = {} if is_join else _lineage(paths, columns, self._keys)
        if lineage:
            facts["dagster/column_lineage"] = dg.TableColumnLineage(lineage)
        if rows:
            redacted = _Redacted(self._pipeline.program.redact, list(paths.values()), is_join)
            facts["preview"] = _table(rows, {name: redacted.covers(field) for name, field in columns.items()})
        return facts


def origins(nodes: Sequence[Step], field: str) -> Collection[str] | None:
    """Return the source fields that a field depends on; None if a processor on the way can't determine them."""
    names: set[str] = {field}
    for node in reversed(nodes):
        told = [node.made_of(name) for name in names]
        names = set[str]().union(*(made for made in told if made is not None))
        if None in told:
            return None
    return names


def _lineage(
    paths: Mapping[str, Sequence[Step]], columns: Mapping[str, str | None], keys: AssetKeys
) -> dict[str, list[dg.TableColumnDep]]:
    """Return the lineage of each column; a column is left out if one path can't determine it."""
    found = dict[str, list[dg.TableColumnDep]]()
    for column, field in columns.items():
        told = {source: None if field is None else origins(nodes, field) for source, nodes in paths.items()}
        if None not in told.values():
            pairs = [(source, name) for source, names in told.items() for name in sorted(names or ())]
            found[column] = [dg.TableColumnDep(keys.of(source), name) for source, name in pairs]
    return found


class _Redacted:
    """Determines which columns may hold redacted data, under any name."""

    def __init__(self, fields: Sequence[str], paths: Sequence[Sequence[Step]], is_join: bool) -> None:
        references = [Reference.parse(text) for text in fields]
        self._names = {one.path[0] for one in references if one.path}
        self._paths = paths
        # a whole part, or metadata: the columns it has gone into are unknown
        self._everything = any(is_join or not one.path or one.root == "metadata" for one in references)

    def covers(self, field: str | None) -> bool:
        """Return whether the column of this field must be masked; also True if unknown."""
        if self._everything or not self._names:
            return self._everything
        return field is None or any(self._is_made_of_one(nodes, field) for nodes in self._paths)

    def _is_made_of_one(self, nodes: Sequence[Step], field: str) -> bool:
        # a field is redacted by its name at any point of the path
        for start in range(len(nodes) + 1):
            names = origins(nodes[start:], field)
            if names is None or not self._names.isdisjoint(names):
                return True
        return False


def _table(rows: Sequence[Mapping[str, Any]], masked: Mapping[str, bool]) -> dg.TableMetadataValue:
    """Return the rows as a table. ``masked``: by column."""
    records = [
        dg.TableRecord({name: MASK if is_masked else _cell(row.get(name)) for name, is_masked in masked.items()})
        for row in rows
    ]
    return dg.MetadataValue.table(records, dg.TableSchema([dg.TableColumn(name, "string") for name in masked]))


def _cell(value: Any) -> str:
    if isinstance(value, dict | list | bool | None):
        text = json.dumps(value, ensure_ascii=False, default=str)
    else:
        text = value.decode("utf-8", "replace") if isinstance(value, bytes) else str(value)
    return hide(text)[:_LONGEST]
