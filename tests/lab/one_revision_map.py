"""Dagster's database revisions, read once in a process: each Dagster instance of a test reads all of them anew.

It was a sixth of the processor time of the tests without Spark; a process of users' has one instance.
"""

from __future__ import annotations

from functools import cache

from alembic.config import Config
from alembic.script import ScriptDirectory


def share_revisions() -> None:
    """From now on, for Dagster's own revisions; the state store's are read as always."""
    plain = ScriptDirectory.from_config

    @cache
    def read(location: str, ini: str) -> ScriptDirectory:
        config = Config(ini)
        config.set_main_option("script_location", location)
        return plain(config)

    def shared(config: Config) -> ScriptDirectory:
        location = config.get_main_option("script_location") or ""
        ini = config.config_file_name
        return read(location, str(ini)) if ini and location.startswith("dagster:") else plain(config)

    ScriptDirectory.from_config = staticmethod(shared)
