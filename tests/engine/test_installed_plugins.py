"""Plugins that an installed package provides by entry points."""

from __future__ import annotations

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
    site = tmp_path / "site"
    (site / "loud-1.0.dist-info").mkdir(parents=True)
    (site / "loud_package.py").write_text(MODULE)
    (site / "loud-1.0.dist-info" / "METADATA").write_text("Metadata-Version: 2.1\nName: loud\nVersion: 1.0\n")
    (site / "loud-1.0.dist-info" / "entry_points.txt").write_text(POINTS)
    monkeypatch.syspath_prepend(site)
    _installed.cache_clear()
    yield
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
