"""Optional packages: which parts need which extra of the distribution, and how to install it.

The only place with this knowledge: a plugin's module imports its package like any other, and the lookup of plugins
(``builtin_plugins.py``) asks here when the import fails.
"""

from __future__ import annotations

from collections.abc import Mapping
from importlib.metadata import PackageNotFoundError, version
from importlib.util import find_spec
from typing import Final, NamedTuple

from conduit_dagster import storage
from conduit_dagster.recovery.errors import FatalError
from conduit_dagster.store_files import protocol_problem

EXTRAS: Final[Mapping[str, tuple[str, ...]]] = {
    "avro": ("fastavro",),
    "delta": ("deltalake",),
    "javascript": ("quickjs-ng",),
    "kafka": ("confluent-kafka",),
    "lineage": ("openlineage-python",),
    "postgres": ("psycopg",),
    "s3": ("s3fs",),
    "ui": ("dagster-webserver", "dagster-dg-cli"),
}
"""Extras, with the distributions that ``pyproject.toml`` lists for them; ``all`` is all of these."""

PLUGINS: Final[Mapping[str, str]] = {
    "connectors.delta": "delta",
    "connectors.kafka": "kafka",
    "connectors.postgres": "postgres",
    "connectors.s3": "s3",
    "processors.avro_decode": "avro",
    "processors.avro_encode": "avro",
    "processors.custom_javascript": "javascript",
}
"""Built-in plugins, by file location, that can't be imported without an extra."""

_PROTOCOLS: Final[Mapping[str, str]] = {"s3": "s3", "s3a": "s3"}
"""Protocols of URLs whose file system comes with an extra."""


class NotInstalledError(FatalError):
    """Raised for a feature whose extra is not installed."""


def extra_of(module: str) -> str | None:
    """Return the extra that a module of a built-in plugin needs, or None."""
    package, _, place = module.partition(".")
    return PLUGINS.get(".".join(place.split(".")[:2])) if package == "conduit_dagster" else None


def can_import(module: str) -> bool:
    """Return whether a module can be found. Imports nothing of it."""
    return find_spec(module) is not None


def install_command(*extras: str) -> str:
    """Return the command that installs extras."""
    return f"pip install 'conduit-dagster[{','.join(extras)}]'"


def not_installed(
    what: str, extra: str, error: ImportError, code: str = "plugin.not_installed", place: str | None = None
) -> NotInstalledError:
    """Return the error for ``what``, which could not be imported without ``extra``."""
    message = f"{what} needs the extra {extra}: {' '.join(str(error).split())}"
    return NotInstalledError(message, code=code, place=place, fix=install_command(extra))


class Unopenable(NamedTuple):
    """Why no file at a URL can be opened in this process, and what to do."""

    message: str
    fix: str


def unopenable(url: str) -> Unopenable | None:
    """Return why a pipeline can't use the file system of a URL in this process, or None. Opens no connection."""
    protocol = url.partition("://")[0]
    if protocol.rpartition("::")[2] == "memory":
        message = "memory:// is inside one process: Spark's workers, and the next run, see nothing of it"
        return Unopenable(message, "use a local path, or the URL of a store that they share")
    if storage.is_local(url) or (problem := protocol_problem(url)) is None:
        return None
    extra = _PROTOCOLS.get(protocol)
    install = install_command(extra) if extra is not None else "install the package of fsspec for it"
    return Unopenable(
        f"{protocol}:// can't be opened here: {problem}", f"{install} wherever the pipeline runs, or use a local path"
    )


def is_installed(extra: str) -> bool:
    """Return whether an extra's own packages are installed. Imports none of them."""
    try:
        return all(version(name) for name in EXTRAS[extra])
    except PackageNotFoundError:
        return False
