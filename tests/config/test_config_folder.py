from __future__ import annotations

from pathlib import Path

import pytest

from conduit_dagster.config import LoadedFiles, dagster_name, load

TEXT = """\
version: "2.2"
pipelines:
  - id: {id}
    name: {name}
    connectors: [{{id: a, type: source, plugin: x}}, {{id: b, type: destination, plugin: x}}]
"""


def write(folder: Path, name: str, pipeline: str, label: str = "") -> str:
    path = folder / name
    path.write_text(TEXT.format(id=pipeline, name=label or pipeline))
    return str(path)


def places(loaded: LoadedFiles) -> list[tuple[str, str, int, int, str]]:
    return [(f.code, Path(f.file).name, f.line, f.column, f.path) for f in loaded.findings]


def test_a_folder_gives_its_own_files_in_order(tmp_path: Path) -> None:
    """Not those in its subfolders, as in Conduit; suffixes in any case."""
    for name in ("b.yml", "a.yaml", "C.YAML", "no.txt"):
        write(tmp_path, name, name.replace(".", "-"))
    (tmp_path / "sub.yaml").mkdir()
    write(tmp_path / "sub.yaml", "d.yaml", "d")
    loaded = load([tmp_path], {})
    assert [Path(file.file).name for file in loaded.files] == ["C.YAML", "a.yaml", "b.yml"]
    assert loaded.findings == []
    assert [pipeline.config.id for pipeline in loaded.runnable()] == ["C-YAML", "a-yaml", "b-yml"]


def test_files_come_in_the_order_of_the_paths_and_once(tmp_path: Path) -> None:
    first, second = write(tmp_path, "a.yaml", "a"), write(tmp_path, "b.txt", "b")
    loaded = load([second, first, tmp_path, tmp_path / "." / "a.yaml"], {})
    assert [file.file for file in loaded.files] == [second, first]
    assert loaded.findings == []


def test_what_cannot_be_read_is_a_finding(tmp_path: Path) -> None:
    (tmp_path / "dangling.yaml").symlink_to(tmp_path / "gone")
    loaded = load([tmp_path, tmp_path / "none"], {})
    assert places(loaded) == [
        ("config.file_unreadable", "dangling.yaml", 1, 1, ""),
        ("config.file_unreadable", "none", 1, 1, ""),
    ]


def test_pipelines_with_one_id_are_all_refused(tmp_path: Path) -> None:
    first, second = write(tmp_path, "a.yaml", "same"), write(tmp_path, "b.yaml", "same", "other")
    write(tmp_path, "c.yaml", "fine")
    loaded = load([tmp_path], {})
    assert places(loaded) == [
        ("config.id_duplicate", "a.yaml", 3, 9, "/pipelines/0/id"),
        ("config.id_duplicate", "b.yaml", 3, 9, "/pipelines/0/id"),
    ]
    assert loaded.findings[0].message == f"another pipeline has this id: {second}:3:9"
    assert loaded.findings[1].message == f"another pipeline has this id: {first}:3:9"
    assert [pipeline.config.id for pipeline in loaded.runnable()] == ["fine"]


def test_two_in_one_file(tmp_path: Path) -> None:
    path = tmp_path / "a.yaml"
    path.write_text(f"{TEXT.format(id='same', name='n')}---\n{TEXT.format(id='same', name='n')}")
    loaded = load([path], {})
    assert places(loaded) == [
        ("config.id_duplicate", "a.yaml", 3, 9, "/pipelines/0/id"),
        ("config.id_duplicate", "a.yaml", 9, 9, "/pipelines/0/id"),
    ]
    assert loaded.runnable() == []


def test_names_are_unique(tmp_path: Path) -> None:
    write(tmp_path, "a.yaml", "a", "same")
    write(tmp_path, "b.yaml", "same")
    assert places(load([tmp_path], {})) == [
        ("config.name_duplicate", "a.yaml", 4, 11, "/pipelines/0/name"),
        ("config.name_duplicate", "b.yaml", 4, 11, "/pipelines/0/name"),
    ]


def test_names_in_dagster_are_unique(tmp_path: Path) -> None:
    write(tmp_path, "a.yaml", "a-b")
    write(tmp_path, "b.yaml", "a.b")
    loaded = load([tmp_path], {})
    assert places(loaded) == [
        ("config.id_clash", "a.yaml", 3, 9, "/pipelines/0/id"),
        ("config.id_clash", "b.yaml", 3, 9, "/pipelines/0/id"),
    ]
    assert loaded.runnable() == []


def test_ids_that_are_wrong_are_not_compared(tmp_path: Path) -> None:
    write(tmp_path, "a.yaml", "'a b'")
    write(tmp_path, "b.yaml", "'a b'")
    assert [code for code, *_ in places(load([tmp_path], {}))] == ["config.field_invalid"] * 2


def test_strict_and_environment_reach_the_files(tmp_path: Path) -> None:
    write(tmp_path, "a.yaml", "$ID\n    foo: 1", "n")
    assert [pipeline.config.id for pipeline in load([tmp_path], {"ID": "x"}).runnable()] == ["x"]
    assert load([tmp_path], {"ID": "x"}, strict=True).runnable() == []


@pytest.mark.parametrize(("text", "name"), [("a-b:c.d", "a_b_c_d"), ("plain_1", "plain_1")])
def test_dagster_name(text: str, name: str) -> None:
    assert dagster_name(text) == name
