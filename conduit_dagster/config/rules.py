"""Rules between the fields of a pipeline. They check the values as written, even if fields are invalid."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any, NamedTuple, cast

from conduit_dagster.config import pointer as pointers
from conduit_dagster.config.delivery import Recovery
from conduit_dagster.config.document import Document
from conduit_dagster.config.findings import Finding
from conduit_dagster.config.scalars import CONNECTOR_ID_BYTES
from conduit_dagster.config.tree import Mapped

if TYPE_CHECKING:
    from conduit_dagster.config.parse import ParsedPipeline

_TYPES = ("source", "destination")
_QUEUE = "dead_letters"
"""The dead-letter queue's name among the nodes."""


def between_fields(tree: Mapped, pipeline: ParsedPipeline, recovery: Recovery) -> list[Finding]:
    """Return the findings of all rules."""
    return [
        *_duplicates(tree, pipeline),
        *_long_ids(tree, pipeline),
        *_missing_ends(tree, pipeline),
        *_delays(pipeline, recovery),
    ]


def rename_processor_types(tree: Mapped, document: Document) -> list[Finding]:
    """Accept a processor's deprecated ``type`` as ``plugin``; if both are given they must agree."""
    findings: list[Finding] = []
    for processor in (item for items in _processor_lists(tree) for item in items):
        if "type" in processor:
            findings.append(_renamed(processor, document))
            kind = processor.pop("type")
            processor.setdefault("plugin", kind)
    return findings


def _renamed(processor: Mapped, document: Document) -> Finding:
    written = pointers.child(processor.where, "type")
    plugin = processor.get("plugin")
    if plugin is None:
        document.rename(pointers.child(processor.where, "plugin"), written)
        processor.pop("plugin", None)
    elif plugin != processor["type"]:
        message, got = "plugin and type are both given, and differ", document.text(written)
        return document.finding(written, "config.field_invalid", message, got=got, fix="remove type", on_key=True)
    message, fix = "type is now called plugin", "write plugin instead of type"
    return document.finding(written, "config.field_renamed", message, severity="warning", fix=fix, on_key=True)


class _Named(NamedTuple):
    """A node, by its id within the pipeline: errors, dead letters, replays and processors' state name it so."""

    node: str
    what: str
    item: Mapped


def _duplicates(tree: Mapped, pipeline: ParsedPipeline) -> Iterator[Finding]:
    first: dict[str, _Named] = {}
    for named in _nodes(tree):
        if (earlier := first.setdefault(named.node, named)) is not named:
            yield _duplicate(earlier, named, pipeline)


def _nodes(tree: Mapped) -> Iterator[_Named]:
    for connector in (connectors := _items(tree, "connectors")):
        yield from _named("connector", "", connector)
    queue = tree.get("dead-letter-queue")
    inner = [(item.get("id"), item) for item in connectors]
    inner += [(_QUEUE, queue)] if isinstance(queue, Mapped) else []
    for parent, item in inner:
        for processor in _items(item, "processors"):
            yield from _named("processor", f"{parent}:", processor)
    for processor in _items(tree, "processors"):
        yield from _named("processor", "", processor)


def _named(what: str, prefix: str, item: Mapped) -> Iterator[_Named]:
    name = item.get("id")
    if isinstance(name, str) and name:
        yield _Named(f"{prefix}{name}", what, item)


def _duplicate(earlier: _Named, named: _Named, pipeline: ParsedPipeline) -> Finding:
    where = pointers.child(named.item.where, "id")
    line, column = pipeline.locate(pointers.child(earlier.item.where, "id"))
    place, is_same = f"at {pipeline.file}:{line}:{column}", earlier.item.get("id") == named.item.get("id")
    if is_same and earlier.what == named.what:
        message = f"another {named.what} has this id, {place}"
    else:
        message = f"errors, dead letters and replays would call it {named.node}, as the {earlier.what} {place}"
    fix = "give each its own id"
    return pipeline.finding(where, "config.id_duplicate", message, got=pipeline.written(where), fix=fix)


def _long_ids(tree: Mapped, pipeline: ParsedPipeline) -> Iterator[Finding]:
    prefix = len(f"{tree.get('id') or ''}:".encode("utf-8", "surrogatepass"))
    for item in _items(tree, "connectors"):
        size = prefix + len(str(item.get("id") or "").encode("utf-8", "surrogatepass"))
        if size > CONNECTOR_ID_BYTES:
            where = pointers.child(item.where, "id")
            message = f"the id with its pipeline's is {size} bytes long, the limit is {CONNECTOR_ID_BYTES}"
            expected = f"at most {max(CONNECTOR_ID_BYTES - prefix, 0)} bytes here"
            yield pipeline.finding(
                where, "config.field_too_long", message, got=pipeline.written(where), expected=expected
            )


def _missing_ends(tree: Mapped, pipeline: ParsedPipeline) -> Iterator[Finding]:
    listed = tree.get("connectors")
    # an empty value counts as not given
    if listed not in (None, "") and not isinstance(listed, list):
        return
    kinds = [item.get("type") for item in _items(tree, "connectors")]
    # a connector with an invalid type may be the missing one, and has its own finding
    if any(kind not in _TYPES for kind in kinds) or len(kinds) != len(cast(list[Any], listed or [])):
        return
    for kind in _TYPES:
        if kind not in kinds:
            message, fix = f"the pipeline has no {kind}", f"add a connector with type: {kind}"
            where = pointers.child(tree.where, "connectors")
            yield pipeline.finding(where, f"pipeline.no_{kind}", message, fix=fix, on_key=True)


def _delays(pipeline: ParsedPipeline, base: Recovery) -> Iterator[Finding]:
    own = pipeline.config.recovery
    if pipeline.has_finding("/recovery") or not own.model_fields_set & {"min_delay", "max_delay"}:
        return
    if (message := own.over(base).delays_problem) is not None:
        name = "min-delay" if "min_delay" in own.model_fields_set else "max-delay"
        where = pointers.join(pipeline.pointer, ("recovery", name))
        expected = "min-delay at most max-delay"
        yield pipeline.finding(where, "config.field_invalid", message, got=pipeline.written(where), expected=expected)


def _processor_lists(tree: Mapped) -> Iterator[list[Mapped]]:
    yield _items(tree, "processors")
    for connector in _items(tree, "connectors"):
        yield _items(connector, "processors")


def _items(tree: Mapped, name: str) -> list[Mapped]:
    value = tree.get(name)
    if not isinstance(value, list):
        return []
    return [item for item in cast(list[Any], value) if isinstance(item, Mapped)]
