"""Where in an open delivery an operator's offset falls."""

from __future__ import annotations

from dataclasses import dataclass

from conduit_dagster.engine.moves import offset_of, span_of
from conduit_dagster.engine.operate.open_delivery import OpenDelivery
from conduit_dagster.engine.operate.refused import refused
from conduit_dagster.sdk import StagedRecord


@dataclass(frozen=True)
class Cut:
    """A place in a delivery."""

    source: str
    offset: int
    place: int
    """The first record behind the offset: it stays to be sent."""
    following: StagedRecord | None
    """That record; None at the delivery's end."""
    named: list[int]
    """Offsets of the records between where the delivery stands and the place, in order."""
    ahead: int
    """How many of them the destination had acknowledged out of order."""


def require_within(opened: OpenDelivery, source: str, offset: int) -> None:
    """Raises ``FatalError`` (``offsets.beyond_step``, ``.before_step``) for an offset that is not in the step."""
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
    """Goes through the delivery's records. Raises ``FatalError`` (``offsets.order``).

    A delivery is handled from its front: records of another source that lie before are never skipped unnamed.
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
