"""The conformance suite of sources: one that has no end fails its tests, which would otherwise go on for ever."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from lab.conformance_runs import Numbers, context, run_check

from conduit_dagster.sdk import ConnectorSettings, Limit, ReadOptions, Record, Split
from conduit_dagster.testing.conformance import SourceConformance


class GoesBack(Numbers):
    def latest(self, start: int, limit: Limit, horizon: Any = None) -> int:
        return 20 if start == 30 else 30


class AlwaysHasMore(Numbers):
    def latest(self, start: int, limit: Limit, horizon: Any = None) -> int:
        return start + 30


class Follows(Numbers):
    def read(self, split: Split, options: ReadOptions) -> Iterator[list[Record]]:
        yield from super().read(split, options)
        while True:
            yield []


@pytest.mark.parametrize(
    ("kind", "check", "message"),
    [
        (GoesBack, "resuming_changes_no_record", "gave 30 again, after 20"),
        (AlwaysHasMore, "resuming_changes_no_record", "finds something new without end"),
        (Follows, "splits_know_their_place", "gives blocks without end"),
        (Follows, "resuming_changes_no_record", "gives blocks without end"),
    ],
)
def test_a_source_without_an_end_is_found(tmp_path: Path, kind: type[Numbers], check: str, message: str) -> None:
    records = [Record(i + 1, {}, {"i": i}) for i in range(30)]
    every = {"make": lambda: kind(ConnectorSettings(), context(tmp_path)), "end": 30, "horizon": {}, "records": records}
    with pytest.raises(AssertionError, match=message):
        run_check(SourceConformance(), check, every)
