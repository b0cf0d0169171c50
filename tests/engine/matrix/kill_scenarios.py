"""Pipelines of the kill matrix, and what each of them must have delivered at the end."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
from engine.matrix.kill_destinations import ALL_PLACES, PLACES, SECOND, Place, Row
from lab.chain_lab import chained
from lab.postgres_tables import WINDOW, make_table, table_settings
from lab.support import DECODE, Lab, processor

STEP = 10
"""Records of one source in one step."""
FIRST = {"in": 0, "in2": 100}
"""The number of each source's first record."""
_OF_A_FILE = 4
"""Records of a file where a folder is read."""
KEYED = 'CREATE UNIQUE INDEX ON "{table}" (i)'
"""For rows that have a key."""
CHECK = 'ALTER TABLE "{table}" ADD CONSTRAINT no_seven CHECK (i % 10 <> 7)'
DEFERRED = """
    CREATE FUNCTION "{table}_refuse"() RETURNS trigger LANGUAGE plpgsql AS
    $$ BEGIN RAISE check_violation USING MESSAGE = 'no seven'; END $$;
    CREATE CONSTRAINT TRIGGER no_seven AFTER INSERT ON "{table}" DEFERRABLE INITIALLY DEFERRED
    FOR EACH ROW WHEN (NEW.i % 10 = 7) EXECUTE FUNCTION "{table}_refuse"()
"""
"""Found at the commit only, which names no record: a bulk error."""


def _numbers(row: Row) -> list[int]:
    return [row["i"]]


def _joined(row: Row) -> list[int]:
    return list(divmod(row["i"], 1_000))


_JOIN = [
    processor("both", "field.set", field=".Payload.After.i", expression="after['in'].i * 1000 + after.in2.i"),
    processor("only", "field.exclude", fields=".Payload.After.in,.Payload.After.in2"),
]
"""Both numbers of a joined record in one."""


@dataclass(frozen=True)
class Scenario:
    """A pipeline of three steps or more; records are ``{"i": n}``."""

    name: str
    kinds: tuple[str, ...] = tuple(PLACES)
    strategies: tuple[str, ...] = ("exactly-once", "at-least-once", "at-most-once")
    sources: tuple[str, ...] = ("in",)
    second: bool = False
    """Whether there is a second destination, of another kind, that changes its records."""
    nacked: tuple[int, ...] = ()
    filtered: bool = False
    """Whether ``i % 10 == 5`` is filtered."""
    once: bool = False
    """Whether of each three numbers in a row only the first one goes on; some of these lie in two steps."""
    query: bool = False
    """Whether both are a query's doing, which Spark computes while the stage runs."""
    files: bool = False
    """Whether it reads a folder, some files of which end within a step."""
    rows: bool = False
    """Whether it reads a folder of Parquet files."""
    table: str = ""
    """Whether it reads a table of PostgreSQL: ``copied``, ``polled``, or ``streamed`` from a replication slot."""
    chained: bool = False
    """Whether it reads the log of another pipeline instead of the file."""
    refused: str = ""
    """SQL of what refuses ``i % 10 == 7`` at the destination."""
    window: tuple[int, int] = (0, 0)
    end: int | None = None
    """The record that exceeds the window: it and those behind it are never delivered."""
    steps: int = 3
    delivery: dict[str, Any] = field(default_factory=dict[str, Any])
    fan_in: str = "merge"
    numbers: Callable[[Row], list[int]] = _numbers
    """Numbers of the source records that a row was made of."""

    @property
    def given(self) -> list[int]:
        """All source records, in order per source."""
        return [FIRST[source] + i for source in self.sources for i in range(self.steps * STEP)]

    @property
    def handled(self) -> list[int]:
        """Those that are handled to their end."""
        return [i for i in self.given if self.end is None or i < self.end]

    @property
    def letters(self) -> list[int]:
        """Those that become dead letters, in each step first those that never reached its destinations."""
        found = [i for i in self.handled if i in self.nacked or self._is_refused(i)]
        return sorted(found, key=lambda i: (i // STEP, self._is_refused(i), i))

    @property
    def delivered(self) -> list[int]:
        """Those that reach each destination."""
        lost = set(self.letters)
        return [i for i in self.handled if i not in lost and not self._is_filtered(i)]

    @property
    def _constraint(self) -> str:
        return KEYED if self.table else self.refused

    def _is_filtered(self, i: int) -> bool:
        return (self.filtered and i % 10 == 5) or (self.once and i % 3 != 0)

    def _is_refused(self, i: int) -> bool:
        return bool(self.refused) and i % 10 == 7

    def places(self, lab: Lab, kind: str, database: str | None) -> list[Place]:
        """Its destinations, the first one's kind first."""
        kinds = [kind, SECOND[kind]] if self.second else [kind]
        return [ALL_PLACES[one](lab.root, database) for one in kinds]

    def build(self, lab: Lab, pipeline: str, name: str, places: list[Place], strategy: str) -> None:
        """Write the pipeline's file and create its outputs; the sources' files are those of :func:`write_sources`."""
        for number, place in enumerate(places):
            place.prepare(f"{name}_{number}", False, self._constraint if number == 0 else "")
        places[0].prepare(f"{name}_dead", True)
        if self.table:
            assert places[0].database is not None
            make_table(places[0].database, pipeline, self.given, STEP if self.table == "streamed" else 0)
        lab.pipeline(
            id=pipeline,
            connectors=[*(self._source(one, pipeline, places) for one in self.sources), *self._outputs(name, places)],
            processors=self._processors(),
            delivery={"strategy": strategy, "batch-size": STEP, **self.delivery},
            **{"fan-in": self.fan_in, "dead-letter-queue": self._queue(name, places[0])},
        )

    def _source(self, source: str, pipeline: str, places: list[Place]) -> dict[str, Any]:
        if self.table:
            mode = "never" if self.table == "streamed" else "initial"
            settings = {**table_settings(str(places[0].database), pipeline), "snapshotMode": mode}
            if self.table == "polled":
                settings["cdcMode"] = "long_polling"
            return {"id": source, "type": "source", "plugin": "builtin:postgres", "settings": settings}
        if self.chained:
            return chained(name=source, processors=[DECODE])
        if self.rows:
            return {
                "id": source,
                "type": "source",
                "plugin": "parquet",
                "settings": {"path": f"./{source}{self.steps}.d"},
            }
        settings = {"path": f"./{source}{self.steps}" + ("/" if self.files else ".jsonl")}
        if (
            self.files or self.end is not None
        ):  # the last record of a copy is marked as such, also in a step that is cut
            settings["collection"] = "rows"
        return {"id": source, "type": "source", "plugin": "builtin:file", "settings": settings, "processors": [DECODE]}

    def _outputs(self, name: str, places: list[Place]) -> list[dict[str, Any]]:
        return [self._output(number, f"{name}_{number}", place) for number, place in enumerate(places)]

    def _output(self, number: int, name: str, place: Place) -> dict[str, Any]:
        change = [processor("change", "field.set", field=".Payload.After.m", value="2")] if number else []
        settings = place.settings(name, False)
        return {
            "id": f"out{number}", "type": "destination", "plugin": place.plugin, "settings": settings,
            "processors": change,
        }  # fmt: skip

    def _processors(self) -> list[dict[str, Any]]:
        refuse = processor("refuse", "error", f"after.i in {list(self.nacked)}", message="bad {{ .Payload.After.i }}")
        skip = processor("skip", "filter", "after.i % 10 == 5")
        if self.fan_in == "join":
            return _JOIN
        if self.query:
            bad = f"CASE WHEN i IN ({', '.join(map(str, self.nacked))}) THEN 'bad' ELSE '0' END"
            query = f"SELECT i + CAST({bad} AS BIGINT) AS i FROM record WHERE i % 10 <> 5"
            return [processor("select", "sql", columns="i BIGINT", query=query)]
        once = processor("once", "deduplicate", **{"key": "after.i // 3", "window.records": "50"})
        chosen = ((once, self.once), (refuse, self.nacked), (skip, self.filtered))
        return [one for one, is_there in chosen if is_there]

    def _queue(self, name: str, place: Place) -> dict[str, Any]:
        size, threshold = self.window
        return {
            "plugin": place.plugin,
            "settings": place.settings(f"{name}_dead", True),
            "window-size": size,
            "window-nack-threshold": threshold,
        }


def write_sources(lab: Lab) -> None:
    """The files that all pipelines of a project read."""
    for source, first in FIRST.items():
        for steps in {scenario.steps for scenario in SCENARIOS.values()}:
            rows = [{"i": first + i} for i in range(steps * STEP)]
            lab.write(f"{source}{steps}.jsonl", rows)
            for begin in range(0, len(rows), _OF_A_FILE):
                lab.write(f"{source}{steps}/{begin:03d}.jsonl", rows[begin : begin + _OF_A_FILE])
                table = lab.root / f"{source}{steps}.d" / f"{begin:03d}.parquet"
                table.parent.mkdir(exist_ok=True)
                pq.write_table(pa.Table.from_pylist(rows[begin : begin + _OF_A_FILE]), table)


# the last record of a step and the first of the next are among them
_BAD = (3, 9, 10, 13, 23, 104, 109, 110, 124)
_ALL = (
    Scenario("one"),
    Scenario("two", second=True, nacked=_BAD, filtered=True),
    Scenario("nacks", nacked=_BAD, filtered=True),
    # 11 and 13 are tolerated, 14 is one too many: the second step is cut before it
    Scenario("cut", second=True, nacked=(11, 13, 14), filtered=True, window=(5, 2), end=14),
    Scenario("flight", ("file",), nacked=_BAD, filtered=True, delivery={"max-in-flight": 3}),
    Scenario("refused", ("postgres",), ("exactly-once", "at-least-once"), nacked=_BAD, refused=CHECK),
    Scenario("bulk", ("postgres",), ("exactly-once",), nacked=_BAD, refused=DEFERRED),
    Scenario("merge", sources=("in", "in2"), nacked=_BAD, filtered=True),
    Scenario("join", sources=("in", "in2"), fan_in="join", numbers=_joined),
    # the state kept from a step decides in the next one; 9 is nacked behind it
    Scenario("once", ("file", "postgres"), ("exactly-once",), once=True, nacked=(9,)),
    Scenario("query", ("file", "parquet"), ("exactly-once",), nacked=_BAD, filtered=True, query=True),
    Scenario("chain", ("file", "postgres"), ("exactly-once",), nacked=_BAD, filtered=True, chained=True),
    # completely read files leave the position (kill_runs: at once)
    Scenario("files", ("file",), ("exactly-once",), nacked=_BAD, filtered=True, files=True),
    Scenario("rows", ("file",), ("exactly-once",), nacked=_BAD, filtered=True, rows=True),
    # not into PostgreSQL: a slot waits for the transactions that are open, and here dead pipelines keep theirs
    Scenario("copied", ("file",), ("exactly-once",), nacked=_BAD, filtered=True, table="copied"),
    Scenario("polled", ("file",), ("exactly-once",), nacked=_BAD, filtered=True, table="polled"),
    Scenario(
        "streamed", ("file", "postgres"), nacked=_BAD, filtered=True, table="streamed", delivery={"batch-bytes": WINDOW}
    ),
    Scenario("records", ("file",), nacked=_BAD, filtered=True, delivery={"log": "records"}),
)
SCENARIOS = {scenario.name: scenario for scenario in _ALL}
