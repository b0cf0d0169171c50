"""Location of an operator's offset in an open delivery."""

from __future__ import annotations

from dataclasses import dataclass

from conduit_dagster.engine.offset_updates import offset_of, span_of
from conduit_dagster.engine.operate.open_delivery import OpenDelivery
from conduit_dagster.engine.operate.operator_errors import refused
from conduit_dagster.sdk import StagedRecord


@dataclass(frozen=True)
class Cut:
    """A place in a delivery."""

    source: str
    offset: int
    place: int
    """Index of the first record after the offset, which remains to be sent."""
    following: StagedRecord | None
    """That record; None at the delivery's end."""
    named: list[int]
    """Offsets of the records between the delivery's progress and the place, in order."""
    ahead: int
    """Number of those that the destination had acked out of order."""


def require_within(opened: OpenDelivery, source: str, offset: int) -> None:
    """Raise ``FatalError`` (``offsets.beyond_step``, ``.before_step``) for an offset that is not in the step."""
    shipment = opened.shipment
    span, count = span_of(shipment.plan, source), shipment.decision.sources.get(source)
    first, last = span.offset, span.offset + (count.read if count else 0) - 1
    if first - 1 <= offset <= last:
        return
    side = "beyond" if offset > last else "before"
    raise refused(
        f"offsets.{side}_step",
        f"offset {offset} is {side} the open step {shipment.plan.step}, which holds {first} to {last} of {source}",
        f"mark one of {first} to {last}",
        node=opened.node,
    )


def cut_at(opened: OpenDelivery, source: str, offset: int) -> Cut:
    """Find an offset among the delivery's records. Raises ``FatalError`` (``offsets.order``).

    A delivery is handled from its front: earlier records of another source are never skipped without being named.
    """
    plan, progress = opened.shipment.plan, opened.shipment.progress
    order = [span.source for span in plan.ranges]
    limit = (order.index(source), offset - span_of(plan, source).offset)
    place, ahead = 0, 0
    following: StagedRecord | None = None
    forward, back = list[tuple[str, int]](), list[tuple[str, int]]()
    for number, record in enumerate(opened.records):
        at = (record.source, offset_of(plan, record.source, record.ordinal))
        if (order.index(record.source), record.ordinal) > limit:
            following = following or record
            if number >= progress.handled:
                break
            back.append(at)
            continue
        place = number + 1
        if number >= progress.handled:
            forward.append(at)
            ahead += number <= progress.namespaces.get(record.record.collection, -1)
    _require_order(opened, source, forward)
    return Cut(source, offset, place, following, [number for _, number in back or forward], ahead)


def _require_order(opened: OpenDelivery, source: str, forward: list[tuple[str, int]]) -> None:
    others = [at for at in forward if at[0] != source]
    if not others:
        return
    name, last = others[-1]
    command = f"conduit-dagster offsets mark {opened.desk.id} {opened.consumer} {last} --source {name}"
    raise refused(
        "offsets.order",
        f"{len(others)} records of {name}, up to offset {last}, come before those of {source} and are not handled",
        f"send them, or mark them first: {command}",
        node=opened.node,
    )
