"""The pipelines whose smallest step and memory are measured."""

from __future__ import annotations

from benchmarks.setup import Setup, to_file, to_table

KINDS = ("file at least once", "file exactly once", "file exactly once, log: records", "postgres exactly once")
TABLE = "out0"


def needs_database(kind: str) -> bool:
    """Return whether :func:`setup_of` needs a database URL."""
    return kind.startswith("postgres")


def setup_of(kind: str, url: str = "", batch: int | None = None) -> Setup:
    """Return one of :data:`KINDS`; ``url``: of the database with the table :data:`TABLE`."""
    strategy = "at-least-once" if "at least once" in kind else "exactly-once"
    log = "records" if "records" in kind else "positions"
    destination = to_table(TABLE, url) if needs_database(kind) else to_file("out", "file")
    return Setup([destination], strategy, log, batch=batch)
