"""The file that an export writes."""

from __future__ import annotations

from pathlib import Path

import pytest

from conduit_dagster.engine.operate.export_file import exported
from conduit_dagster.recovery.errors import TransientError


@pytest.mark.parametrize("length", [1, 243, 255])
def test_a_name_of_any_length(tmp_path: Path, length: int) -> None:
    with exported(tmp_path / ("x" * length), False, "exporting") as out:
        out.write(b"1")
    assert [(len(path.name), path.read_bytes()) for path in tmp_path.iterdir()] == [(length, b"1")]


@pytest.mark.parametrize(("name", "code"), [("file/in-it", "file.not_folder"), ("no/folder", "file.missing")])
def test_a_place_where_no_file_can_be(tmp_path: Path, name: str, code: str) -> None:
    """The removal of a draft that was never there raised an error of its own."""
    (tmp_path / "file").touch()
    with pytest.raises(TransientError) as error, exported(tmp_path / name, False, "exporting"):
        pass
    assert (error.value.code, error.value.place) == (code, str(tmp_path / name))


def test_a_failure_leaves_the_file_that_is_there(tmp_path: Path) -> None:
    (tmp_path / "out").write_text("before")
    with pytest.raises(ValueError, match="unforeseen"), exported(tmp_path / "out", True, "exporting") as out:
        out.write(b"1")
        raise ValueError("unforeseen")
    assert [(path.name, path.read_text()) for path in tmp_path.iterdir()] == [("out", "before")]
