"""Where the newest planned step ends: the next one begins there, also before that one is done."""

from __future__ import annotations

from collections.abc import Sequence
from copy import copy

from conduit_dagster.engine.ledger import Ledger
from conduit_dagster.state.pipeline_state import PipelineState, SourceState
from conduit_dagster.state.steps import Plan


class PlanCursor:
    """Position and offset of each source behind all planned steps."""

    def __init__(self, state: PipelineState) -> None:
        self.sources: dict[str, SourceState] = {name: copy(source) for name, source in state.sources.items()}
        self._last = state.last_plan.ranges[-1].source if state.last_plan and state.last_plan.ranges else None

    def planned(self, plan: Plan) -> None:
        """A step follows."""
        for span in plan.ranges:
            self.sources[span.source].position = span.end
        self._last = plan.ranges[-1].source

    def staged(self, plan: Plan, ledgers: Sequence[Ledger]) -> None:
        """Its records are counted: the next one's offsets are known."""
        for span in plan.ranges:
            read = sum(ledger.sources[span.source].read for ledger in ledgers if span.source in ledger.sources)
            self.sources[span.source].records = span.offset + read

    def turns(self, sources: Sequence[str]) -> Sequence[str]:
        """The sources in the order in which they may be chosen next: after the one that was last (CASES D3)."""
        if self._last not in sources:
            return sources
        after = sources.index(self._last) + 1
        return [*sources[after:], *sources[:after]]
