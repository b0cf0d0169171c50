"""The file destination: however often a delivery is repeated, by any process, its bytes are there once."""

from __future__ import annotations

from pathlib import Path

import pytest
from lab.file_deliveries import killed_mid_publish, make, prepared, rows, stage
from lab.file_rights import obeyed

from conduit_dagster.recovery.errors import ConduitError


def test_deliveries_follow_each_other_in_one_file(tmp_path: Path) -> None:
    destination, target = make(tmp_path), None
    for step, tasks in ((1, [[1, 2], [3]]), (2, [[4]])):
        delivery = prepared(stage(destination, tmp_path, step, tasks), destination.target(target))
        assert not destination.holds(delivery)
        target = destination.publish(delivery)
        assert destination.holds(delivery)
    assert rows(tmp_path / "out.jsonl") == [1, 2, 3, 4]


def test_a_repeat_writes_the_same_bytes_in_the_same_place(tmp_path: Path) -> None:
    """Also a torn one, and one by a frozen owner after everything is done."""
    destination = make(tmp_path)
    delivery = prepared(stage(destination, tmp_path, 1, [[1, 2], [3]]), destination.target(None))
    destination.publish(delivery)
    whole = (tmp_path / "out.jsonl").read_bytes()
    with (tmp_path / "out.jsonl").open("r+b") as file:
        file.truncate(5)
    assert not destination.holds(delivery)
    destination.publish(delivery)
    destination.publish(delivery)
    assert (tmp_path / "out.jsonl").read_bytes() == whole


def test_what_is_there_already_is_kept(tmp_path: Path) -> None:
    (tmp_path / "out.jsonl").write_text('{"i":0}\n')
    destination = make(tmp_path)
    destination.publish(prepared(stage(destination, tmp_path, 1, [[1]]), destination.target(None)))
    assert rows(tmp_path / "out.jsonl") == [0, 1]


@pytest.mark.parametrize("how", ["grown", "replaced", "removed"])
def test_a_foreign_change_is_refused_and_can_be_adopted(tmp_path: Path, how: str) -> None:
    destination, path = make(tmp_path), tmp_path / "out.jsonl"
    target = destination.publish(prepared(stage(destination, tmp_path, 1, [[1]]), destination.target(None)))
    if how != "grown":
        path.rename(tmp_path / "kept")
    if how != "removed":
        with path.open("a") as file:
            file.write('{"i":9}\n')
    with pytest.raises(ConduitError) as error:
        destination.target(target)
    assert error.value.code == "file.changed"
    adopting = make(tmp_path, **{"if-changed": "adopt"})
    adopting.publish(prepared(stage(adopting, tmp_path, 2, [[2]]), adopting.target(target)))
    assert rows(path) == {"grown": [1, 9, 2], "replaced": [9, 2], "removed": [2]}[how]


@pytest.mark.parametrize("foreign", ["x", "foreign", "x" * 100])
def test_foreign_bytes_behind_the_base_are_never_overwritten(tmp_path: Path, foreign: str) -> None:
    """However few; the beginning of the delivery itself, or a hole, is overwritten."""
    destination, path = make(tmp_path), tmp_path / "out.jsonl"
    delivery = prepared(stage(destination, tmp_path, 1, [[1], [2]]), destination.target(None))
    path.write_text(foreign)
    with pytest.raises(ConduitError, match="was changed by another writer"):
        destination.publish(delivery)
    assert path.read_text() == foreign
    path.write_bytes(b'{"i":1}\n\0\0\0')
    destination.publish(delivery)
    assert rows(path) == [1, 2]


def test_a_lost_target_is_replaced_where_the_settings_say_so(tmp_path: Path) -> None:
    path = tmp_path / "out.jsonl"
    delivery = prepared(stage(make(tmp_path), tmp_path, 1, [[1]]), make(tmp_path).target(None))
    path.rename(tmp_path / "kept")  # so that its inode is not reused
    path.write_text('{"i":9}\n')
    assert make(tmp_path).retarget(delivery) is None
    adopting = make(tmp_path, **{"if-changed": "adopt"})
    target = adopting.retarget(delivery)
    assert target is not None
    adopting.publish(prepared(delivery, target))
    assert rows(path) == [9, 1]


@pytest.mark.parametrize("foreign", [1, 100])
def test_foreign_lines_behind_the_base_are_adopted_where_the_settings_say_so(tmp_path: Path, foreign: int) -> None:
    """Fewer bytes than the delivery's were taken for its beginning: the error whose fix this setting is came back."""
    path, destination = tmp_path / "out.jsonl", make(tmp_path, **{"if-changed": "adopt"})
    delivery = prepared(stage(destination, tmp_path, 1, [[1, 2, 3]]), destination.target(None))
    path.write_text('{"i":9}\n' * foreign)
    target = destination.retarget(delivery)
    assert target is not None
    destination.publish(prepared(delivery, target))
    assert rows(path) == [9] * foreign + [1, 2, 3]
    path.write_bytes(path.read_bytes()[:-3])
    assert destination.retarget(prepared(delivery, target)) is None, "a torn write of ours is written again"


def test_a_file_that_does_not_end_its_last_line(tmp_path: Path) -> None:
    """Our first record begins a new line, also when it is published again."""
    (tmp_path / "out.jsonl").write_text('{"i":0}')
    destination = make(tmp_path)
    delivery = prepared(stage(destination, tmp_path, 1, [[1]]), destination.target(None))
    for _ in range(2):
        target = destination.publish(delivery)
    assert rows(tmp_path / "out.jsonl") == [0, 1]
    assert target["length"] == (tmp_path / "out.jsonl").stat().st_size


@pytest.mark.parametrize("change", ["foreign", "hole"])
def test_the_line_end_before_our_first_line_is_part_of_the_delivery(tmp_path: Path, change: str) -> None:
    """A foreign byte in its place is not lost; a hole in its place does not count, and is written again."""
    path = tmp_path / "out.jsonl"
    path.write_text('{"i":0}')
    destination = make(tmp_path)
    delivery = prepared(stage(destination, tmp_path, 1, [[1]]), destination.target(None))
    if change == "foreign":
        path.write_text('{"i":0}x')
        with pytest.raises(ConduitError, match="was changed by another writer"):
            destination.publish(delivery)
        assert path.read_text() == '{"i":0}x'
        return
    destination.publish(delivery)
    path.write_bytes(path.read_bytes().replace(b"\n", b"\0", 1))
    assert not destination.holds(delivery)
    destination.publish(delivery)
    assert destination.holds(delivery)
    assert rows(path) == [0, 1]


@pytest.mark.parametrize("tasks", [[[1, 2]], [[1], [2]], [[1], [2], [3, 4, 5]]])
def test_half_of_the_bytes_are_there_mid_publish(tmp_path: Path, tasks: list[list[int]]) -> None:
    """However many parts there are; a repeat by another process completes the delivery."""
    destination = make(tmp_path)
    delivery = prepared(stage(destination, tmp_path, 1, tasks), destination.target(None))
    with killed_mid_publish():
        destination.publish(delivery)
    assert (tmp_path / "out.jsonl").stat().st_size == delivery.bytes // 2
    assert not destination.holds(delivery)
    again = make(tmp_path)
    assert again.publish(delivery) == again.settled(delivery) == again.expected(delivery)
    assert rows(tmp_path / "out.jsonl") == [i for task in tasks for i in task]


def test_a_folder_in_the_place_of_the_file_left_nothing_behind(tmp_path: Path) -> None:
    """A path that was a folder of parts and is now a file starts from the beginning."""
    folder = make(tmp_path, "out", layout="folder")
    target = folder.publish(prepared(stage(folder, tmp_path, 1, [[1]]), folder.target(None)))
    (tmp_path / "out").rename(tmp_path / "kept")
    file = make(tmp_path, "out", layout="file")
    file.publish(prepared(stage(file, tmp_path, 2, [[2]]), file.target(target)))
    assert rows(tmp_path / "out") == [2]


def test_the_address_is_the_absolute_path(tmp_path: Path) -> None:
    """As written: a link is not followed, although what is owned is the file behind it."""
    (tmp_path / "link.jsonl").symlink_to(tmp_path / "real.jsonl")
    destination = make(tmp_path, "link.jsonl")
    assert destination.address == str(tmp_path / "link.jsonl")
    assert destination.owned == str((tmp_path / "real.jsonl").resolve())


def test_a_staged_part_that_was_cut_off_is_found(tmp_path: Path) -> None:
    destination = make(tmp_path)
    delivery = prepared(stage(destination, tmp_path, 1, [[1, 2, 3]]), destination.target(None))
    Path(delivery.staging, delivery.parts[0].name).write_bytes(b"{")
    with pytest.raises(ConduitError) as error:
        destination.publish(delivery)
    assert error.value.code == "delivery.staging_damaged"


@pytest.mark.parametrize("path", ["locked/out.jsonl", "locked/out/"])
def test_a_folder_without_permission_is_named(tmp_path: Path, path: str) -> None:
    (tmp_path / "locked").mkdir(mode=0o500)
    destination = make(tmp_path, path)
    with obeyed(), pytest.raises(ConduitError) as error:
        destination.check()
    assert error.value.code == "file.no_permission"
    assert error.value.fix


def test_a_folder_of_parts_is_one_ordered_stream(tmp_path: Path) -> None:
    """Each delivery appears at once, by a rename; a zombie's file in the staging folder never becomes visible."""
    destination = make(tmp_path, "out/")
    for step, tasks in ((1, [[1, 2], [3]]), (2, [[4]])):
        delivery = prepared(stage(destination, tmp_path, step, tasks), destination.target(None))
        Path(delivery.staging, "00000-zombie.jsonl").write_text('{"i":99}\n')
        assert not destination.holds(delivery)
        destination.publish(delivery)
        destination.publish(delivery)
        assert destination.holds(delivery)
    files = sorted((tmp_path / "out").glob("step=*/*"))
    assert [i for file in files for i in rows(file)] == [1, 2, 3, 4]
    assert [file.name for file in files] == ["part-00000.jsonl", "part-00001.jsonl", "part-00000.jsonl"]


def test_a_folder_whose_bytes_differ_is_not_held(tmp_path: Path) -> None:
    destination = make(tmp_path, "out/")
    delivery = prepared(stage(destination, tmp_path, 1, [[1]]), destination.target(None))
    destination.publish(delivery)
    [part] = (tmp_path / "out").glob("step=*/*")
    part.unlink()
    part.write_text('{"i":2}\n')
    assert not destination.holds(delivery)
    with pytest.raises(ConduitError, match="is there with other bytes"):
        destination.publish(delivery)
