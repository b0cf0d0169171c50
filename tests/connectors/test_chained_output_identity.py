"""Reading another pipeline's output: which file it is. Another file's lines are never read in its place."""

from __future__ import annotations

import gc
import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import sqlalchemy as sa
from lab.descriptors import open_files
from lab.file_reading import text_of

from conduit_dagster.config.project import Project
from conduit_dagster.connectors.file import file_state
from conduit_dagster.connectors.pipeline import output
from conduit_dagster.connectors.pipeline.read_mode import KEY, Upstream
from conduit_dagster.connectors.pipeline.source import PipelineSource, PipelineSourceSettings
from conduit_dagster.expressions import Clock
from conduit_dagster.recovery.errors import FatalError
from conduit_dagster.sdk import Block, ConnectorContext, Limit, ReadOptions, Split
from conduit_dagster.state import tables
from conduit_dagster.state.claim import project_store

Patch = pytest.MonkeyPatch
MUCH = Limit(1_000, 1_000_000)
OURS, THEIRS = [f"ours{i}" for i in range(5)], [f"them{i}" for i in range(5)]
"""Of the same lengths: only which file it is, or what is in it, tells them apart."""
FOLDER = "step=000000000001-0000000000000000-abc"


def text(lines: list[str]) -> bytes:
    return "".join(f"{line}\n" for line in lines).encode()


class Chain:
    """A file ``out``, or a folder of that name with one part, that the pipeline ``a`` has published."""

    def __init__(self, root: Path, is_folder: bool = False) -> None:
        self._root, self._is_folder = root, is_folder
        self.path = root / "out" / FOLDER / "part-00000.jsonl" if is_folder else root / "out"
        self.path.parent.mkdir(parents=True, exist_ok=True)
        self._database = project_store(Project.find(root, {}))
        row = {"pipeline": "a", "consumer": "first", "kind": "data", "delivered": 0, "step": 1, "target": ""}
        with self._database.begin() as connection:
            connection.execute(tables.consumers.insert().values(**row))
        self.restart()

    def close(self) -> None:
        self._database.dispose()

    def restart(self) -> None:
        written = {"path": "./out/" if self._is_folder else "./out", "sdk.record.format": "template"}
        upstream = Upstream("first", {**written, "sdk.record.format.options": "{{ .Payload.After }}"})
        settings = PipelineSourceSettings.model_validate({"pipeline": "a", KEY: upstream.encode()})
        self.source = PipelineSource(settings, ConnectorContext("p", "in", str(self._root), Clock()))

    def write(self, lines: list[str]) -> None:
        """Into the existing file, or a new one."""
        self.path.write_bytes(text(lines))

    def publish(self, lines: list[str], **target: Any) -> None:
        self.write(lines)
        size, inode = self.path.stat().st_size, self.path.stat().st_ino
        told = {"naming": 2} if self._is_folder else {"inode": inode, "length": size}
        stored = json.dumps({"path": str(self._root / "out"), **told, **target})
        with self._database.begin() as connection:
            connection.execute(sa.update(tables.consumers).values(target=stored))

    def replace(self, lines: list[str] = THEIRS) -> None:
        """With another file. The old one keeps its inode, under another name."""
        self.path.rename(self._root / "kept")
        self.write(lines)

    def end(self, start: Any = None) -> Any:
        return self.source.latest(start or self.source.initial(), MUCH)

    def split(self, end: Any, start: Any = None) -> Split:
        [split] = self.source.split(start or self.source.initial(), end, 1)
        return split

    def blocks(self, split: Split) -> list[Block]:
        return [block for block in self.source.read(split, ReadOptions()) if isinstance(block, Block)]

    def lines(self, split: Split) -> list[str]:
        return [text_of(record) for block in self.blocks(split) for record in block.records]


@pytest.fixture(params=[False, True], ids=["file", "folder"])
def chain(tmp_path: Path, request: pytest.FixtureRequest) -> Iterator[Chain]:
    chain = Chain(tmp_path, request.param)
    yield chain
    chain.close()


@pytest.fixture
def one_file(tmp_path: Path) -> Iterator[Chain]:
    chain = Chain(tmp_path)
    yield chain
    chain.close()


@pytest.fixture
def births(monkeypatch: Patch) -> Callable[[int], None]:
    """Set every file's birth time; 0: the file system does not know it."""
    told = [1_000]
    monkeypatch.setattr(file_state, "birth_of", lambda file: told[0])
    return lambda value: told.__setitem__(0, value)


def gone(act: Callable[[], Any], why: str) -> None:
    with pytest.raises(FatalError, match=why) as raised:
        act()
    assert raised.value.code == "chain.output_gone"


def test_the_fix_of_a_copy_names_the_writer_s_setting(one_file: Chain) -> None:
    """Until the writer has adopted it, a rewound reader refuses the copy as well."""
    one_file.publish(OURS)
    one_file.replace(OURS)
    with pytest.raises(FatalError, match="it is another file") as raised:
        one_file.end()
    assert "a copy is another file" in str(raised.value.fix)
    assert "let a run of a adopt the file first (if-changed: adopt)" in str(raised.value.fix)
    one_file.publish(OURS)
    assert one_file.lines(one_file.split(one_file.end())) == OURS


def first(call: Callable[..., Any], then: Callable[[], None]) -> Callable[..., Any]:
    """Do something else once, and then ``call``."""
    left = [then]

    def called(*args: Any) -> Any:
        if left:
            left.pop()()
        return call(*args)

    return called


# -- an inode that was given to another file ------------------------------------------------------------------------


def test_the_same_inode_with_another_birth(chain: Chain, births: Callable[[int], None]) -> None:
    """Byte for byte the same as before: on the driver, and in a task."""
    chain.publish(OURS)
    end = chain.end()
    split = chain.split(end)
    assert chain.lines(split) == OURS
    births(2_000)
    gone(lambda: chain.end(end), "another file")
    gone(lambda: chain.source.lag(end), "another file")
    gone(lambda: chain.source.verify(chain.source.initial(), end), "another file")
    gone(lambda: chain.split(end), "another file")
    gone(lambda: chain.lines(split), "another file")


def test_a_file_that_the_other_pipeline_did_not_write(one_file: Chain, births: Callable[[int], None]) -> None:
    """Only its inode; also if nothing was read yet."""
    one_file.publish(OURS, birth=2_000)
    gone(one_file.end, "another file")
    births(2_000)
    assert one_file.lines(one_file.split(one_file.end())) == OURS


def test_a_position_of_an_older_version(chain: Chain) -> None:
    """It has only an inode; reading continues, and nothing changes if nothing follows."""
    chain.publish(OURS[:2])
    end = chain.end()
    old = {key: end[key] for key in ("file", "byte", "line", "inode")}
    assert chain.end(old) == old
    chain.source.verify(chain.source.initial(), old)
    split = chain.split(old)
    begin = {key: split.start[key] for key in old}
    assert chain.lines(Split(begin, split.ordinal, split.records, split.bytes, split.detail)) == OURS[:2]
    chain.publish(OURS)
    further = chain.end(old)
    assert chain.lines(chain.split(further, old)) == OURS[2:]
    assert chain.end(further) == further


# -- where no birth is told -----------------------------------------------------------------------------------------


def test_without_births_a_file_is_known_by_what_is_in_it(one_file: Chain, births: Callable[[int], None]) -> None:
    births(0)
    one_file.publish(OURS[:3])
    end = one_file.end()
    one_file.publish(OURS)
    further = one_file.end(end)
    split = one_file.split(further, end)
    assert one_file.lines(split) == OURS[3:]
    one_file.write(THEIRS)
    gone(lambda: one_file.end(end), "other bytes before byte 18")
    gone(lambda: one_file.source.verify(end, further), "other bytes before byte 18")
    gone(lambda: one_file.source.verify(one_file.source.initial(), further), "other bytes before byte 30")
    gone(lambda: one_file.lines(split), "other bytes before byte 18")


def test_without_births_no_change_goes_back(one_file: Chain, births: Callable[[int], None]) -> None:
    births(0)
    one_file.publish(OURS)
    end = one_file.end()
    assert one_file.end(end) == end
    later = {**end, "changed": end["changed"] + 3_600 * 10**9}
    gone(lambda: one_file.end(later), "another file")


# -- a path that changes hands --------------------------------------------------------------------------------------


def test_another_file_between_look_and_open(chain: Chain, monkeypatch: Patch) -> None:
    """What was checked is not what is read."""
    chain.publish(OURS)
    monkeypatch.setattr(output, "open_found", first(output.open_found, chain.replace))
    gone(chain.end, "another file")


def test_another_file_while_a_range_is_measured(chain: Chain, monkeypatch: Patch) -> None:
    """The position belongs to the file that was open."""
    chain.publish(OURS)
    whole = chain.end()
    monkeypatch.setattr(output, "reach", first(output.reach, lambda: chain.replace(["x" * 12, "x" * 40])))
    assert {**chain.end(), "changed": 0} == {**whole, "changed": 0}
    gone(lambda: chain.split(whole), "another file")


def test_another_file_between_verify_and_split(chain: Chain, monkeypatch: Patch) -> None:
    chain.publish(OURS)
    end = chain.end()
    monkeypatch.setattr(chain.source._mode, "_behind", _after(chain.source._mode._behind, chain.replace))  # type: ignore[attr-defined]
    gone(lambda: chain.split(end), "another file")


def _after(call: Callable[..., Any], then: Callable[[], None]) -> Callable[..., Any]:
    def called(*args: Any) -> Any:
        result = call(*args)
        then()
        return result

    return called


def test_another_file_between_plan_and_task(chain: Chain) -> None:
    chain.publish(OURS)
    split = chain.split(chain.end())
    chain.replace()
    gone(lambda: chain.lines(split), "another file")
    chain.path.unlink()
    gone(lambda: chain.lines(split), "it was removed")


def test_another_file_while_a_task_reads(chain: Chain, monkeypatch: Patch) -> None:
    """It reads the file it opened, to the end; boundaries belong to that one as well."""
    chain.publish(OURS)
    end = chain.end()
    split = chain.split(end)
    monkeypatch.setattr(output, "read_lines", first(output.read_lines, chain.replace))
    [block] = chain.blocks(split)
    assert [text_of(record) for record in block.records] == OURS
    cut = chain.source.within(chain.source.initial(), end, block.boundary(4))
    assert {**cut, "changed": 0, "modified": 0} == {**end, "changed": 0, "modified": 0}


def test_what_is_published_is_there(chain: Chain, monkeypatch: Patch) -> None:
    """A file truncated since the check, behind what was read: nothing is left out silently."""
    chain.publish(OURS)
    monkeypatch.setattr(output, "open_found", first(output.open_found, lambda: chain.write(OURS[:3])))
    gone(chain.end, "it ends before byte 30")


# -- boundaries -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("length", [1, 255, 256, 257, 1_000])
def test_a_range_may_be_cut_behind_every_line(chain: Chain, length: int) -> None:
    """However long the lines of a boundary's mark are."""
    lines = [f"{i}" * length for i in range(5)]
    chain.publish(lines)
    start, end = chain.source.initial(), chain.end()
    [block] = chain.blocks(chain.split(end))
    for i in range(4):
        cut = chain.source.within(start, end, block.boundary(i))
        chain.restart()
        assert chain.lines(chain.split(cut)) == lines[: i + 1]
        assert chain.lines(chain.split(end, cut)) == lines[i + 1 :]


def test_no_boundary_is_of_what_was_never_read(one_file: Chain) -> None:
    """The file was rewritten in place while a task had its lines, behind an unchanged beginning."""
    one_file.publish(["x" * 300, *OURS])
    [block] = one_file.blocks(one_file.split(one_file.end()))
    one_file.write(["x" * 300, *THEIRS])
    gone(lambda: block.boundary(2), "other bytes before byte 313")


def test_descriptors_are_given_back(chain: Chain) -> None:
    chain.publish(OURS)
    end = chain.end()
    open_now = open_files(chain.path)
    for _ in range(3):
        assert chain.lines(chain.split(chain.end())) == OURS
        chain.source.verify(chain.source.initial(), end)
    gc.collect()
    assert open_files(chain.path) == open_now
