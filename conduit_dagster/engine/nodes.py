"""Processors as nodes of the stage: condition, namespace, and handling of each result."""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from typing import Any, Protocol, cast

import re2

from conduit_dagster.engine.reading import not_json, source_faults, storable, unknown_operation
from conduit_dagster.expressions import Clock, compile_condition
from conduit_dagster.json_values import is_json, plain
from conduit_dagster.lazy_records import as_list
from conduit_dagster.node_ids import node_id
from conduit_dagster.payload_code import DROPPING, PayloadCode, conditional
from conduit_dagster.record import Data, Nack, Record, copy, copy_data, share_documents, structure_fault
from conduit_dagster.recovery.classify import ENDINGS, blame, lack_of_memory
from conduit_dagster.sdk import DROP, Processor, Result, Results

CONDITION_FAILED = "condition.failed"
CONDITION = "~condition"
"""Last part of the node id of a connector's condition. No processor id begins with ``~``."""


Select = Callable[[Record], Any]
_Given = tuple[int | str, Data, Data, Data]
"""Position, payload after, key and payload before of a record."""


class NodeListener(Protocol):
    """Callbacks to the stage for records that do not continue."""

    def filtered(self, node: str, origin: int) -> None:
        """Handle a record that a node dropped."""
        ...

    def nacked(self, node: str, origin: int, nack: Nack, record: Record) -> None:
        """Handle a record that a node nacked; ``record`` is as transformed so far."""
        ...


class Node:
    """One processor, for the records that its namespace and condition select (:func:`selects_of`)."""

    def __init__(self, node: str, processor: Processor, selects: Sequence[Select] = ()) -> None:
        """``selects``: predicates on a record, all of which must hold; other records pass unchanged."""
        self.node, self._processor, self._selects = node, processor, selects

    @property
    def payload_code(self) -> PayloadCode | None:
        """Code that does the same for the usual payload, if there is any (:class:`PayloadCode`)."""
        code = _own_code(self._processor)
        if code is None or not self._selects:
            return code
        condition = _code_of(self._selects)
        return None if condition is None else conditional(condition, code)

    def made_of(self, field: str) -> Collection[str] | None:
        """Return the fields that the processor reports, and the field itself if records may pass unselected.

        See :meth:`Processor.made_of`.
        """
        made = self._processor.made_of(field)
        return {*made, field} if made is not None and self._selects else made

    def run(
        self, records: list[Record], origins: Sequence[int], listener: NodeListener
    ) -> tuple[list[Record], Sequence[int]]:
        """Process a block; return the records that continue, and for each the index of its source record."""
        records = as_list(records)
        results = self._results(records)
        if results is records:
            return records, origins
        return self._sort_out(results, records, origins, listener)

    def _results(self, records: list[Record]) -> Sequence[Result]:
        if not self._selects:
            return self._process(records)
        results: list[Result] = list(records)
        chosen, is_whole = self._chosen(records, results)
        if not chosen:
            return records if is_whole else results
        some = [records[i] for i in chosen]
        processed = self._process(some)
        if processed is some:
            return records if is_whole else results
        for i, result in zip(chosen, processed, strict=True):
            results[i] = result
        return results

    def _chosen(self, records: list[Record], results: list[Result]) -> tuple[list[int], bool]:
        """Return the places of the selected records, and whether no condition failed; failures go into the results."""
        if len(self._selects) == 1:
            select = self._selects[0]
            try:
                return [i for i, record in enumerate(records) if select(record)], True
            except Exception:  # noqa: BLE001  # raised again below, where the failing record is known
                pass
        chosen = [i for i, record in enumerate(records) if self._is_selected(i, record, results)]
        return chosen, not any(type(result) is Nack for result in results)

    def _is_selected(self, i: int, record: Record, results: list[Result]) -> bool:
        try:
            return all(select(record) for select in self._selects)
        except Exception as error:  # noqa: BLE001  # a condition that fails nacks its record, whatever it raised
            results[i] = _condition_nack(error, self.node)
            return False

    def _process(self, records: list[Record]) -> Sequence[Result]:
        if self._processor.shares_records:
            return self._process_block(records)
        for record in records:
            record.metadata = dict(record.metadata)
        given = [(record.position, record.after, record.key, record.before) for record in records]
        # a list of its own: an author's function may sort or shorten it, but places pair results with origins
        return _own(given, records, checked(self._process_block(list(records)), records))

    def _process_block(self, records: list[Record]) -> list[Result]:
        try:
            return self._processor.process_block(records)
        except ENDINGS:
            raise
        except BaseException as error:
            raise blame(error, self.node, "processor.failed") from error

    def _sort_out(
        self, results: Sequence[Result], records: list[Record], origins: Sequence[int], listener: NodeListener
    ) -> tuple[list[Record], Sequence[int]]:
        if isinstance(results, Results):
            special = results.special
        else:
            special = [i for i, result in enumerate(results) if type(result) is not Record]
        on: list[Record] = []
        from_: list[int] = []
        begin = 0
        for i in special:
            on.extend(cast("list[Record]", results[begin:i]))
            from_.extend(origins[begin:i])
            begin = i + 1
            more = self._special(results[i], records[i], origins[i], listener)
            on.extend(more)
            from_.extend([origins[i]] * len(more))
        on.extend(cast("list[Record]", results[begin:]))
        from_.extend(origins[begin:])
        return on, from_

    def _special(self, result: Result, record: Record, origin: int, listener: NodeListener) -> list[Record]:
        """Return the records that continue from a result other than a single record."""
        if isinstance(result, Nack):
            listener.nacked(self.node, origin, result, record if self._processor.shares_records else storable(record))
            return []
        if isinstance(result, Record):
            return [result]
        if result is DROP or not result:
            listener.filtered(self.node, origin)
            return []
        return result


def _condition(text: str, clock: Clock) -> Select | None:
    return compile_condition(text, clock) if text else None


def _namespace(pattern: str) -> Select | None:
    """Return a selector that searches the collection for the pattern, unanchored (CASES C14)."""
    if not pattern:
        return None
    search = re2.compile(pattern).search
    return lambda record: search(record.collection) is not None


def _condition_nack(error: Exception, node: str) -> Nack:
    """Return the nack of the record on which a condition failed. Raises what is no record's fault."""
    if (lack := lack_of_memory(error)) is not None:
        raise blame(lack, node, "processor.failed") from error
    return Nack(CONDITION_FAILED, f"failed evaluating condition: {error}")


def _own_code(processor: Processor) -> PayloadCode | None:
    """Return the processor's code, but not one that a user's class inherits: the class may do something else."""
    kind = type(processor)
    is_own = kind.__module__.startswith("conduit_dagster.processors.") or "payload_code" in vars(kind)
    return processor.payload_code if is_own else None


def _code_of(selects: Sequence[Select]) -> PayloadCode | None:
    return getattr(selects[0], "code", None) if len(selects) == 1 else None


class FilterNode:
    """Filter that passes records of a namespace, or those for which a condition holds, and drops the others.

    A record on which the condition fails is nacked.
    """

    def __init__(self, node: str, select: Select) -> None:
        self.node, self._select = node, select

    def made_of(self, field: str) -> Collection[str]:
        """Return the field itself: records pass unchanged."""
        return (field,)

    @property
    def payload_code(self) -> PayloadCode | None:
        """Code that does the same for the usual payload; None for a namespace."""
        condition = _code_of([self._select])
        return None if condition is None else conditional(condition, DROPPING, otherwise=True)

    def run(
        self, records: list[Record], origins: Sequence[int], listener: NodeListener
    ) -> tuple[list[Record], Sequence[int]]:
        """Return the selected records; the others are dropped, and acked."""
        on: list[Record] = []
        from_: list[int] = []
        for record, origin in zip(records, origins, strict=True):
            try:
                selected = self._select(record)
            except Exception as error:  # noqa: BLE001  # same as the condition of a processor
                listener.nacked(self.node, origin, _condition_nack(error, self.node), record)
                continue
            if selected:
                on.append(record)
                from_.append(origin)
            else:
                listener.filtered(self.node, origin)
        return on, from_


class SourceCheck:
    """Nacks replayed records that no step can hold, as their source's node does: the edits may have mended them."""

    payload_code = None

    def __init__(self, node: str) -> None:
        self.node = node

    def made_of(self, field: str) -> Collection[str]:
        """Return the field itself: records pass unchanged."""
        return (field,)

    def run(
        self, records: list[Record], origins: Sequence[int], listener: NodeListener
    ) -> tuple[list[Record], Sequence[int]]:
        """Return the records that a step can hold."""
        faults = source_faults(records)
        for place, nack in faults.items():
            listener.nacked(self.node, origins[place], nack, storable(records[place]))
        on = [place for place in range(len(records)) if place not in faults]
        return [records[place] for place in on], [origins[place] for place in on]


def selects_of(namespace: str, condition: str, clock: Clock) -> list[Select]:
    """Return the predicates for a namespace and a condition; empty text means none."""
    return [select for select in (_namespace(namespace), _condition(condition, clock)) if select is not None]


def filter_nodes(node: str, namespace: str, condition: str, clock: Clock) -> list[FilterNode]:
    """Return a connector's filters. The condition is a separate node, so that dead letters can be replayed to it."""
    named = ((node, _namespace(namespace)), (node_id(node, CONDITION), _condition(condition, clock)))
    return [FilterNode(name, select) for name, select in named if select is not None]


Step = Node | FilterNode | SourceCheck
"""A node that records pass through."""


def checked(results: Sequence[Result], records: list[Record]) -> Sequence[Result]:
    """Return the results of a user's processor, with every invalid record replaced by a nack."""
    if not isinstance(results, list | tuple):
        message = f"process_block returned a {type(results).__name__}, not a list with a result for each record"
        return [Nack("processor.result_type", message) for _ in records]
    if len(results) != len(records):
        message = f"the processor returned {len(results)} results for {len(records)} records"
        return [Nack("processor.result_count", message) for _ in records]
    places = {id(record): place for place, record in enumerate(records)}
    if any(places.get(id(result), place) != place for place, result in enumerate(results)):
        message = "the processor returned the records in another order"
        return [Nack("processor.result_order", message) for _ in records]
    return [_checked(result) for result in results]


def _own(given: Sequence[_Given], records: Sequence[Record], results: Sequence[Result]) -> Sequence[Result]:
    """Return the results with records and documents of their own: a change to one must not affect another.

    ``given``: position, documents and key of each record before. Each result has the position of the record that it was
    made of, as keys and origins are made of it.
    """
    same: list[Record] = []
    made: list[Result] = []
    for before, record, result in zip(given, records, results, strict=True):
        record.position = before[0]
        if result is record:
            _keep_apart(record, before)
            same.append(record)
        elif isinstance(result, Record):
            result = _copy_at(before[0], result)
        elif isinstance(result, list):
            result = [_copy_at(before[0], one) for one in result]
        made.append(result)
    if not share_documents(same):
        return made
    return [_copied(result) for result in made]


def _keep_apart(record: Record, before: _Given) -> None:
    """Give a record copies of the documents that an author's code has set: it may keep them, and set them again."""
    _, after, key, old = before
    if record.after is not after:
        record.after = copy_data(record.after)
    if record.key is not key:
        record.key = copy_data(record.key)
    if record.before is not old:
        record.before = copy_data(record.before)


def _copy_at(position: int | str, record: Record) -> Record:
    own = copy(record)
    own.position = position
    return own


def _copied(result: Result) -> Result:
    if isinstance(result, list):
        return [copy(record) for record in result]
    return copy(result) if isinstance(result, Record) else result


def _checked(result: Any) -> Result:
    if isinstance(result, list):
        faults = [fault for record in result if (fault := _fault(record))]
        return faults[0] if faults else result
    if isinstance(result, Nack):
        return Nack(str(result.code), str(result.message))
    if result is DROP:
        return result
    return _fault(result) or result


def _fault(record: Any) -> Nack | None:
    if not isinstance(record, Record):
        kind = type(record).__name__
        return Nack("processor.result_type", f"the processor returned a {kind}, not a record, a list of them or DROP")
    if (nack := unknown_operation(record)) is not None:
        return nack
    if fault := structure_fault(record):
        return Nack("record.invalid", fault)
    try:
        if is_json(record.after) and is_json(record.key) and is_json(record.before):
            return None
        return None if all(_is_plain(record, name) for name in ("after", "key", "before")) else not_json(record)
    except RecursionError:
        return Nack("record.not_json", "the record is nested too deeply")


def _is_plain(record: Record, name: str) -> bool:
    """Return whether JSON can hold a part of the record, with numbers and texts of other classes made plain."""
    value = getattr(record, name)
    if is_json(value):
        return True
    made = plain(value)
    setattr(record, name, made)
    return is_json(made)
