"""Mutants: rules that destinations enforce, and what is durable when, removed one by one."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from conduit_dagster import storage
from conduit_dagster.connectors.delta.commits import Commits
from conduit_dagster.connectors.file import ordered_file
from conduit_dagster.connectors.file.ordered_file import OrderedFile
from conduit_dagster.connectors.file.path_destination import PartsFolder
from conduit_dagster.connectors.postgres.claims_table import Claims
from conduit_dagster.connectors.postgres.destination import PostgresDestination
from conduit_dagster.engine.delivery_progress import DeliveryHashes
from conduit_dagster.sdk import Delivery, Target
from conduit_dagster.state.steps import Range

Patch = pytest.MonkeyPatch


def append(patch: Patch) -> None:
    """One ordered file is *written at base by positioned writes, never append*: here it is appended to."""

    def appended(into: int, delivery: Delivery, midway: Callable[[], None]) -> None:
        data = b"".join(Path(delivery.staging, part.name).read_bytes() for part in delivery.parts)
        half = len(data) // 2
        os.pwrite(into, data[:half], os.fstat(into).st_size)
        midway()
        os.pwrite(into, data[half:], os.fstat(into).st_size)

    patch.setattr(ordered_file, "write_delivery", appended)


def amobase(patch: Patch) -> None:
    """At-most-once: *the next base is the previous base plus its length, and a gap is filled*: here it is the size."""
    target = OrderedFile.target

    def at_the_end(self: OrderedFile, previous: Target | None) -> Target:
        return target(self, None)

    patch.setattr(OrderedFile, "target", at_the_end)


def folder_hash(patch: Patch) -> None:
    """A folder's parts are *under one name from step number and hash*: here each attempt has its own name."""

    def final(self: PartsFolder, delivery: Delivery) -> Path:
        return self._path / f"step={delivery.step:012d}-{id(self):x}"

    patch.setattr(PartsFolder, "_final", final)


def postgres_hash(patch: Patch) -> None:
    """*One transaction inserts the hash (unique) and moves the rows*: here the hash is not checked."""
    patch.setattr(Claims, "put", lambda self, connection, delivery, state: None)
    patch.setattr(Claims, "state", lambda self, connection, delivery: None)


def delta_hash(patch: Patch) -> None:
    """*The application transaction id is checked in that snapshot*: here it is not."""
    patch.setattr(Commits, "_is_in", lambda self, table, delivery: False)
    patch.setattr(Commits, "_files", _files_per_attempt(Commits._files))


def _files_per_attempt(files: Callable[[Commits, Delivery], list[str]]) -> Any:
    """Delta's log counts a file added twice once: the mutant needs names per attempt, such as random ones."""

    def named(self: Commits, delivery: Delivery) -> list[str]:
        return [name.replace("part-", f"part-{id(self):x}-") for name in files(self, delivery)]

    return named


def gen(patch: Patch) -> None:
    """The hash holds the generation, which *changes on rewind and when a source's identity changes*: here not."""
    source = DeliveryHashes._source

    def ageless(self: DeliveryHashes, span: Range) -> dict[str, Any]:
        return source(self, span) | {"generation": 0}

    patch.setattr(DeliveryHashes, "_source", ageless)


def kill(patch: Patch) -> None:
    """*A new owner ends older epochs' connections*: here it does not."""
    patch.setattr(PostgresDestination, "fence", lambda self, epoch: None)


def staging_sync(patch: Patch) -> None:
    """*Staging is fsynced* before prepare: here its folders are not."""
    patch.setattr(storage, "sync", lambda url: None)


def staged_sync(patch: Patch) -> None:
    """*Staging is fsynced* before prepare: here its files are not."""
    patch.setattr(storage.NewFile, "_sync", lambda self: None)


def published_sync(patch: Patch) -> None:
    """Done comes *after fsync of what was published*: here the ordered file is not synced."""
    patch.setattr(ordered_file, "os", SimpleNamespace(**{**vars(os), "fsync": lambda descriptor: None}))
