"""Mistakes in a plugin's class are found when it is loaded, each with its line."""

from __future__ import annotations

import pytest
from lab.support import Lab, destination, processor, source

from conduit_dagster.engine.plugin_loading import load_plugins

HEAD = """
from conduit_dagster.sdk import ConnectorSettings, DirectDestination, DriverDestination, Processor, Source, Split
"""
SOURCE = """
class Mine(Source):
    name = "mine"
    def initial(self):
        return 0
    def latest(self, start, limit, horizon=None):
        return start
    def split(self, start, end, n):
        return [Split(start, 0)]
    def read(self, split, options):
        yield []
"""
PROCESSOR = """
class Mine(Processor):
    name = "mine"
    def process(self, record):
        return record
"""
DESTINATION = """
class Mine(DriverDestination):
    name = "mine"
    def deliver(self, records, delivery):
        print(list(records))
"""


@pytest.mark.parametrize(
    "text", [SOURCE, PROCESSOR, DESTINATION, SOURCE.replace("(self, start, limit, horizon=None)", "(self, *place)")]
)
def test_a_class_that_can_be_called_is_taken(text: str) -> None:
    found = load_plugins({"mine": HEAD + text}, installed=False)
    assert not found.errors
    assert [*found.sources, *found.processors, *found.destinations] == ["mine"]


@pytest.mark.parametrize(
    ("text", "old", "new", "line", "message"),
    [
        (DESTINATION, "def deliver", "async def deliver", 6, "Mine.deliver is async: nothing awaits it"),
        (DESTINATION, "print(", "yield (", 6, "Mine.deliver has a yield, so nothing in it runs"),
        (SOURCE, "(self, start, limit, horizon=None)", "(self, start)", 8, "can't be called as latest(self, start, "),
        (PROCESSOR, "(self, record)", "(record)", 6, "Mine.process(record) can't be called as process(self, record)"),
        (PROCESSOR, "def process", "def __init__(self):\n        pass\n    def process", 6, "Mine.__init__(self) can"),
        (SOURCE, "def read", "def reads", 6, "Mine lacks read"),
        (DESTINATION, "def deliver", "def publish", 6, "Mine lacks deliver"),
        (PROCESSOR, "def process", "def handle", 6, "Mine lacks process"),
        (PROCESSOR, "    def", "    Settings = dict\n    def", 7, "a class that derives from ProcessorSettings"),
        (PROCESSOR, '"mine"', '"builtin:mine"', 6, "the name builtin:mine has a prefix or a version"),
        (SOURCE, '"mine"', '"mine"\n    identity_settings = "path"', 7, 'must be a tuple: ("path",)'),
        (DESTINATION, '"mine"', '"mine"\n    strategies = "exactly-once"', 7, "Mine.strategies must be a set"),
    ],
)  # fmt: skip
def test_a_class_that_cannot_work_is_refused_with_its_line(
    text: str, old: str, new: str, line: int, message: str
) -> None:
    found = load_plugins({"mine": HEAD + text.replace(old, new, 1)}, installed=False)
    [error] = found.errors
    assert (error.file, error.line) == ("plugins/mine.py", line)
    assert message in str(error)
    assert not (found.sources or found.processors or found.destinations)


def test_a_name_belongs_to_one_class() -> None:
    again = PROCESSOR.replace("Mine", "Other")
    found = load_plugins({"a": HEAD + PROCESSOR, "b": HEAD + again + SOURCE}, installed=False)
    assert [(error.file, str(error)) for error in found.errors] == [
        ("plugins/b.py", "Other has the name mine, which is that of Mine too")
    ]
    assert [found.processors["mine"].__name__, *found.sources] == ["Mine", "mine"]


def test_an_abstract_class_may_be_the_base_of_others() -> None:
    base = SOURCE.replace("def read", "def reads")
    found = load_plugins(
        {"mine": f"{HEAD}{base}\nclass B(Mine):\n    name = 'b'\n    read = Mine.reads\n"}, installed=False
    )
    assert ([*found.sources], found.errors) == (["b"], [])


@pytest.mark.parametrize(
    ("text", "line", "fix"),
    [
        ("x = 1\nx = = 2\n", 2, "fix the file"),
        ("def f():\n    raise ValueError('no')\n\nf()\n", 2, "fix the file"),
        ("x = 1\nfrom .helpers import y\n", 2, "can't import its neighbours"),
        ("x = 1\nimport nothing_like_this\n", 2, "install the package wherever tasks run"),
    ],
)
def test_a_file_that_cannot_be_run_is_told_with_its_line(text: str, line: int, fix: str) -> None:
    [error] = load_plugins({"mine": text}, installed=False).errors
    assert error.line == line
    assert fix in error.fix


def test_a_pipeline_names_the_file_that_hides_its_plugin(lab: Lab) -> None:
    lab.write("plugins/mine.py", [HEAD, PROCESSOR.replace("def process", "def handle")])
    lab.pipeline(connectors=[source(), destination()], processors=[processor("a", "mine")])
    found = {finding.code: finding for finding in lab.catalogue().findings}
    assert (found["plugin.broken"].file, found["plugin.broken"].line) == ("plugins/mine.py", 7)
    assert (found["plugin.unknown"].fix or "").startswith("correct plugins/mine.py, which can't be used as it is")


@pytest.mark.parametrize("text", [SOURCE, PROCESSOR, DESTINATION])
def test_a_constructor_that_leaves_out_that_of_its_base_is_named(lab: Lab, text: str) -> None:
    """A connector was an error to report, with a line of the engine's own."""
    own = "    def __init__(self, settings, context):\n        self.seen = {}\n"
    lab.write("plugins/mine.py", [HEAD, text.replace('"mine"\n', f'"mine"\n{own}', 1)])
    mine = {"plugin": "mine", "settings": {}}
    lab.pipeline(
        connectors=[source() | (mine if text == SOURCE else {}), destination() | (mine if text == DESTINATION else {})],
        processors=[processor("a", "mine")] if text == PROCESSOR else [],
    )
    [finding] = lab.catalogue().findings
    call = "super().__init__(settings, context)"
    assert (finding.code, finding.message) == ("plugin.broken", f"Mine.__init__ does not call {call}")
    assert finding.got is not None and finding.got.startswith("plugins/mine.py:")
    assert finding.fix == f"make {call} its first line"
