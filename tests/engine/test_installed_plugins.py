"""Plugins that an installed package provides by entry points."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path

import msgspec
import pytest
from lab.support import DECODE, Lab, destination, processor, source

from conduit_dagster.cli.reference import processor_pages
from conduit_dagster.engine.compiled_pipeline import compile_program
from conduit_dagster.engine.plugin_loading import _installed, load_plugins
from conduit_dagster.engine.program import Program
from conduit_dagster.recovery.errors import FatalError

MODULE = """
from conduit_dagster.sdk import Processor


class Shout(Processor):
    \"\"\"In capitals.\"\"\"

    name = "shout"

    def process(self, record):
        record.after["text"] = record.after["text"].upper()
        return record
"""
POINTS = """
[conduit_dagster.plugins]
loud = loud_package
one = loud_package:Shout
broken = no_such_package
"""


@pytest.fixture(autouse=True)
def package(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """An installed package, as far as Python is concerned."""
    install(tmp_path / "site", "loud", POINTS)
    monkeypatch.syspath_prepend(tmp_path / "site")
    yield
    _installed.cache_clear()


def install(site: Path, name: str, points: str, version: str = "1.0") -> None:
    """Install a package with the module ``NAME_package``."""
    folder = site / f"{name}.dist-info"
    folder.mkdir(parents=True, exist_ok=True)
    (site / f"{name}_package.py").write_text(MODULE)
    (folder / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\n")
    (folder / "entry_points.txt").write_text(points)
    _installed.cache_clear()


def test_its_classes_are_found_and_a_broken_one_is_told() -> None:
    found = load_plugins({})
    assert set(found.processors) == {"shout"}
    [error] = found.errors
    assert error.file == "loud: broken" and "no_such_package" in str(error)
    [page] = [page for page in processor_pages(found) if page.name == "shout"]
    assert (page.origin, page.text) == ("installed", "In capitals.")
    assert load_plugins({}, installed=False).processors == {}


def test_the_projects_own_are_taken_first() -> None:
    found = load_plugins({"mine": MODULE.replace("upper", "title")})
    [page] = [page for page in processor_pages(found) if page.name == "shout"]
    assert page.origin == "project"


def test_of_two_packages_with_one_name_neither_is_taken(tmp_path: Path) -> None:
    install(tmp_path / "site", "other", POINTS.partition("one")[0].replace("loud", "other"))
    found = load_plugins({})
    assert found.processors == {}
    [error] = [error for error in found.errors if "shout" in str(error)]
    assert {"loud", "other"} == {
        text.partition(":")[0].split()[-1] for text in (error.file, str(error).split(" in ")[1])
    }
    assert "plugins/" in error.fix
    # the project's own is taken before both, and there is nothing to tell
    found = load_plugins({"mine": MODULE})
    assert "shout" in found.processors and not [error for error in found.errors if "shout" in str(error)]


def test_a_task_with_another_version_or_without_the_package_says_so(
    lab: Lab, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    lab.pipeline(connectors=[source(), destination()], processors=[DECODE, processor("x", "shout")])
    [bound] = lab.catalogue().bound
    install(tmp_path / "site", "loud", POINTS, version="2.0")
    with pytest.raises(FatalError, match=r"workers have loud 2\.0, this process has 1\.0"):
        compile_program(bound.program)
    (tmp_path / "site" / "loud_package.py").unlink()
    _installed.cache_clear()
    monkeypatch.delitem(sys.modules, "loud_package")
    with pytest.raises(FatalError, match=r"no processor shout on .*loud_package") as missing:
        compile_program(bound.program)
    assert "install the package" in str(missing.value.fix)


def test_a_task_looks_for_them_only_where_they_are_used(tmp_path: Path) -> None:
    lab = Lab(tmp_path / "project")
    # a source of the project with the same name does not hide a processor
    lab.write("plugins/mine.py", [SOURCE])
    for plugin, uses in (("shout", True), ("filter", False)):
        lab.pipeline(connectors=[source(), destination()], processors=[DECODE, processor("x", plugin)])
        [bound] = lab.catalogue().bound
        assert (bound.program.installed, bound.program.plugins) == (uses, {})
        compile_program(msgspec.msgpack.decode(msgspec.msgpack.encode(bound.program), type=Program))
        without = msgspec.structs.replace(bound.program, installed=False)
        if uses:
            with pytest.raises(FatalError, match="no processor shout"):
                compile_program(without)


SOURCE = """
from conduit_dagster.connectors.generator.source import GeneratorSource


class Quiet(GeneratorSource):
    name = "shout"
"""
