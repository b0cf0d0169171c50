"""The pipelines of the frozen owners: one project per destination, strategy and point of the protocol."""

from __future__ import annotations

import hashlib
import json
from collections import Counter
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import psycopg
from engine.frozen.owners import Owners
from lab.delta_rows import column
from lab.kafka_server import create_topic, read_topic
from lab.parts_stream import read_folder
from lab.support import DECODE, destination, processor, queue, source
from psycopg import sql

KINDS = ("file", "folder", "delta", "postgres")
"""Kafka, which needs a broker, has a test of its own."""
REFUSING_KINDS = ("postgres", "kafka")
STARTING = ("after-lease", "after-fence", "after-register", "after-reack")
STEPPING = ("before-plan", "after-plan", "before-stage", "after-stage", "before-prepare", "after-prepare", "mid-index")
CUTTING = ("before-replan", "after-replan")
PUBLISHING = ("before-publish", "mid-publish", "after-publish", "after-delivered")
REFUSING = (
    "before-split",
    "after-split",
    "before-claim",
    "after-claim",
    "before-child",
    "after-child",
    "before-nack",
    "after-nack",
)
ENDING = ("before-done", "after-done", "after-ack")
AT_MOST_ONCE = (
    "before-stage",
    "after-stage",
    "before-prepare",
    "after-prepare",
    "mid-index",
    "before-publish",
    "mid-publish",
    "after-publish",
    "before-done",
    "after-done",
    "after-ack",
)
LOGGING = ("before-log", "after-log-stage", "after-log")
"""Passed only by pipelines that log records, which these do not: their sources can be read again."""

STEP, NACKS, REJECTS = 10, (3, 12), (7, 17)
CUT_NACKS, CUT_WINDOW = (3, 4), (5, 1)


@dataclass(frozen=True)
class Case:
    """A pipeline, and where its owner is frozen in step 1."""

    kind: str
    strategy: str
    point: str
    letters: bool = False
    """At the dead letters' passage of the point, instead of the destination's."""

    @property
    def name(self) -> str:
        """Also the pipeline's id and the table's name."""
        short = "".join(word[0] for word in self.strategy.split("-"))
        return f"{self.kind}_{short}_{self.point.replace('-', '_')}{'_letters' if self.letters else ''}"

    @property
    def passage(self) -> int:
        """The dead letters are published before the destination."""
        return 2 if self.point in PUBLISHING and not self.letters else 1

    @property
    def is_cut(self) -> bool:
        """Whether the window refuses a record of step 1."""
        return self.point in CUTTING

    @property
    def rejects(self) -> tuple[int, ...]:
        """What the destination itself refuses."""
        refuses = self.kind in REFUSING_KINDS and self.strategy == "exactly-once" and not self.is_cut
        # a topic that is missing is found before anything is sent: a transaction is open only where none is
        return REJECTS if refuses and not (self.kind == "kafka" and self.point in PUBLISHING) else ()

    @property
    def out(self) -> list[int]:
        """What the destination must contain in the end, in order."""
        if self.is_cut:
            return [i for i in range(CUT_NACKS[-1]) if i not in CUT_NACKS]
        return [i for i in range(2 * STEP + 5) if i not in (*NACKS, *self.rejects)]

    @property
    def dead(self) -> list[int]:
        """The dead letters, sorted."""
        return [CUT_NACKS[0]] if self.is_cut else sorted((*NACKS, *self.rejects))


def cases(kind: str, strategy: str) -> list[Case]:
    """One for each point that such a pipeline passes; at-most-once differs from the others at two of them."""
    if strategy == "at-most-once":
        return [Case(kind, strategy, point) for point in AT_MOST_ONCE]
    points = [*STARTING, *STEPPING, *CUTTING, *PUBLISHING, *ENDING, *(REFUSING if kind in REFUSING_KINDS else ())]
    letters = ["mid-publish"] if kind == "file" else []
    return [Case(kind, strategy, point) for point in points] + [Case(kind, strategy, p, True) for p in letters]


class FrozenProject(Owners):
    """One case's project folder, with its destination. ``database``: the broker for ``kafka``."""

    def __init__(self, case: Case, root: Path, spark: Any, database: str) -> None:
        super().__init__(root, spark)
        self.case, self.database = case, database

    def set_up(self) -> None:
        """Two steps of records, and the pipeline."""
        case = self.case
        self.root.mkdir(parents=True)
        self.write("in.jsonl", [{"i": i} for i in range(2 * STEP)])
        nacks, window = (CUT_NACKS, CUT_WINDOW) if case.is_cut else (NACKS, (0, 0))
        if case.kind == "postgres":
            self._create_table()
        if case.kind == "kafka":
            create_topic(self.database, self._topic)
        self.pipeline(
            id=case.name,
            connectors=[source(), self._destination()],
            processors=[DECODE, processor("refuse", "error", f"after.i in {list(nacks)}", message="bad")],
            delivery={"strategy": case.strategy, "batch-size": STEP},
            **{"dead-letter-queue": queue(*window)},
        )

    def _destination(self) -> dict[str, Any]:
        kind = self.case.kind
        if kind in ("file", "folder"):
            return destination("out", "./out.jsonl" if kind == "file" else "./out/")
        settings = {"path": "./table", "columns": "i:long"}
        if kind == "postgres":
            settings = {"url": self.database, "table": self.case.name}
        if kind == "kafka":
            settings = self._topic_settings()
        return {"id": "out", "type": "destination", "plugin": kind, "settings": settings}

    @property
    def _topic(self) -> str:
        """Its own, on a shared broker; with one partition, which keeps the order."""
        return f"{hashlib.sha256(str(self.root).encode()).hexdigest()[:8]}-{self.case.name}"

    def _topic_settings(self) -> dict[str, str]:
        """Records to be refused name a missing topic."""
        topic = self._topic
        wanted = f'{{{{ ternary "{topic}-no" "{topic}" (hasSuffix "7" (toString .Payload.After.i)) }}}}'
        return {
            "servers": self.database, "topic": wanted if self.case.rejects else topic, "transactional-id": topic,
            "create-topics": "never", "sdk.record.format": "payload/json",
            # messages handed over have reached the broker before their owner is stopped
            "linger": "0s",
        }  # fmt: skip

    def _create_table(self) -> None:
        check = f", CHECK (i NOT IN {self.case.rejects})" if self.case.rejects else ""
        with psycopg.connect(self.database, autocommit=True) as connection:
            connection.execute(f"CREATE TABLE {self.case.name} (n bigserial PRIMARY KEY, i bigint{check})".encode())

    def grow(self) -> None:
        """More input."""
        self.write("in.jsonl", [{"i": i} for i in range(2 * STEP, 2 * STEP + 5)], mode="a")

    def out(self) -> list[int]:
        """The existing records, in order if the destination keeps one."""
        kind = self.case.kind
        if kind == "delta":
            table = self.root / "table"
            return column(table, "i") if table.exists() else []
        if kind == "postgres":
            statement = sql.SQL("SELECT i FROM {} ORDER BY n").format(sql.Identifier(self.case.name))
            with psycopg.connect(self.database) as connection:
                return [row[0] for row in connection.execute(statement)]
        if kind == "kafka":
            return [json.loads(message.value() or b"")["i"] for message in read_topic(self.database, self._topic)]
        lines = self.lines("out.jsonl") if kind == "file" else list(read_folder(self.root / "out"))
        return [row["i"] for line in lines if (row := self._row(line))]

    def _row(self, line: str | bytes) -> dict[str, int] | None:
        """A line's record; at-most-once ends the line that a frozen owner has torn, and that record does not count."""
        try:
            return json.loads(line) if line else None
        except json.JSONDecodeError:
            if self.case.strategy == "at-most-once" and self.case.kind == "file":
                return None
            raise

    def dead(self) -> list[int]:
        """The dead letters, sorted; empty lines are skipped."""
        path = self.root / "dead.jsonl"
        kept = [line for line in path.read_text().splitlines() if line] if path.exists() else []
        return sorted(json.loads(line)["payload"]["after"]["payload"]["after"]["i"] for line in kept)


def flaw(project: FrozenProject) -> str:
    """What is wrong with the outputs; empty if nothing is."""
    case, out, dead = project.case, project.out(), project.dead()
    if case.strategy == "exactly-once":
        return "" if (out, dead) == (case.out, case.dead) else f"{out} {dead}"
    twice = [i for i, count in (Counter(out) + Counter(dead)).items() if count > 1]
    # only what was prepared and not published when its owner froze may be missing: step 1
    missing = [i for i in {*case.out, *case.dead} - {*out, *dead} if i >= STEP and not case.is_cut]
    foreign = sorted({*out} - {*case.out} | {*dead} - {*case.dead})
    return f"twice {twice}, missing {missing}, foreign {foreign}" if twice or missing or foreign else ""
