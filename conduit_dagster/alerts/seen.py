"""What was reported already: all that a sensor has to remember between two ticks."""

from __future__ import annotations

import msgspec

from conduit_dagster.learn import learn


class Letters(msgspec.Struct, frozen=True):
    """The window in which new dead letters are counted."""

    base: int
    """How many there were at its beginning, or when the last alert was sent."""
    since_ns: int
    told: bool = False
    """An alert was sent in this window: the next one waits for its end."""


class OfPipeline(msgspec.Struct, frozen=True):
    """What was reported of one pipeline."""

    outage: str = ""
    """The outage that was reported; empty where the pipeline is not degraded."""
    letters: Letters | None = None


class Seen(msgspec.Struct, frozen=True):
    """What was reported of all of them."""

    pipelines: dict[str, OfPipeline] = {}

    def of(self, pipeline: str) -> OfPipeline:
        """What was reported of one; of one that is new, nothing."""
        return self.pipelines.get(pipeline, OfPipeline())

    def but(self, pipeline: str, one: OfPipeline) -> Seen:
        """The same, but for one pipeline."""
        return Seen({**self.pipelines, pipeline: one})

    def text(self) -> str:
        """As a cursor."""
        return msgspec.json.encode(self).decode()


def seen_of(cursor: str | None) -> Seen | None:
    """What a cursor says; None where it is lost, or not one of ours."""
    if not cursor:
        return None
    try:
        return msgspec.json.decode(cursor, type=Seen)
    except msgspec.DecodeError:
        return None


learn(Seen)
