"""A plugin's source without records that still reports a lag."""

from __future__ import annotations

import textwrap
from pathlib import Path

_TEXT = '''
import time
from pathlib import Path

from conduit_dagster.sdk import ConnectorSettings, Source


class Idle(Source):
    """Has nothing to read."""

    name = "{name}"
    Settings = ConnectorSettings
    lag_unit = "records"

    def initial(self):
        return 0

    def latest(self, start, limit, horizon=None):
        return start

    def split(self, start, end, n):
        return []

    def read(self, split, options):
        yield from ()

    def lag(self, position):
        root = Path(self.context.root)
{lag}
'''


def install(root: Path, name: str, lag: str) -> None:
    """Write the plugin into the project. ``lag``: the rest of the method, where ``root`` is the project's folder."""
    plugins = root / "plugins"
    plugins.mkdir(exist_ok=True)
    text = _TEXT.format(name=name, lag=textwrap.indent(textwrap.dedent(lag).strip(), " " * 8))
    (plugins / f"{name}.py").write_text(text)
