"""One ordered file, at-most-once, as a story: deliveries with random fates, and late writes at random moments."""

from __future__ import annotations

import tempfile
from pathlib import Path
from typing import Any, Literal

from hypothesis import given, settings
from hypothesis import strategies as st
from lab.file_deliveries import make, next_one, publish_some

from conduit_dagster.connectors.file.ordered_file import write_delivery
from conduit_dagster.sdk import Delivery

Fate = Literal["whole", "dropped", "torn", "holed", "late"]


class Story:
    """Deliveries of one file, each with its own fate; late ones continue at any time."""

    def __init__(self, root: Path) -> None:
        self.root, self.path = root, root / "out.jsonl"
        self.destination = make(root, strategy="at-most-once")
        self.expected: Any = None
        self.told: list[tuple[Delivery, Fate, bytes]] = []

    def tell(self, fate: Fate, tasks: list[list[int]], hole: tuple[int, int]) -> None:
        step = len(self.told) + 1
        delivery, self.expected = next_one(self.destination, self.root, step, tasks, self.expected)
        staged = b"".join(Path(delivery.staging, part.name).read_bytes() for part in delivery.parts)
        self.told.append((delivery, fate, staged))
        if fate in ("torn", "late"):
            publish_some(self.destination, delivery)
        elif fate in ("whole", "holed"):
            self.destination.publish(delivery)
        if fate == "holed":
            self._punch(delivery, *hole)
        if fate != "whole":
            self.destination = make(self.root, strategy="at-most-once")  # the process that did this is gone, or frozen

    def _punch(self, delivery: Delivery, at: int, cut: int) -> None:
        base, size = delivery.target["base"], delivery.bytes
        with self.path.open("r+b") as file:
            file.truncate(base + size - cut % size)
            file.seek(base + at % size)
            file.write(b"\0" * min(3, size - cut % size - at % size))

    def thaw(self) -> None:
        for delivery, fate, _ in self.told:
            if fate == "late":
                with self.path.open("r+b") as file:
                    write_delivery(file.fileno(), delivery, lambda: None)

    def check(self) -> None:
        data, end = self.path.read_bytes(), 0
        for delivery, fate, staged in self.told:
            base = delivery.target["base"]
            assert base == end
            end = base + delivery.bytes
            got = data[base:end]
            assert got.endswith(b"\n")
            assert all(a in (b, 10) for a, b in zip(got, staged, strict=True))
            assert got == staged or fate not in ("whole", "late")
        assert len(data) == end


Docs = st.lists(st.lists(st.integers(0, 999), min_size=1, max_size=3), min_size=1, max_size=3)
Step = st.tuples(
    st.sampled_from(["whole", "dropped", "torn", "holed", "late"]),
    Docs,
    st.tuples(st.integers(0, 60), st.integers(0, 60)),
    st.booleans(),
)


@settings(max_examples=60, deadline=None)
@given(steps=st.lists(Step, min_size=1, max_size=7))
def test_every_byte_is_a_line_end_or_what_belongs_there(steps: list[Any]) -> None:
    """Whatever happened to each delivery, and whenever a frozen owner's late writes arrive."""
    with tempfile.TemporaryDirectory() as folder:
        story = Story(Path(folder))
        for fate, tasks, hole, thaws in steps:
            story.tell(fate, tasks, hole)
            if thaws:
                story.thaw()
        story.destination.target(story.expected)
        story.thaw()
        story.check()
