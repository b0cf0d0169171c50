"""Kinds of destinations: the base class of a plugin determines who publishes."""

from __future__ import annotations

import pytest

from conduit_dagster.builtin_plugins import DESTINATIONS
from conduit_dagster.engine.plugin_loading import load_plugins
from conduit_dagster.sdk import Destination, DirectDestination, DriverDestination, StagedDestination

TEXT = """
from conduit_dagster.sdk import Destination
from conduit_dagster.sdk import RecordWriter


class Shelf(Destination):
    name = "shelf"

    def writer(self, task):
        return RecordWriter(task)

    def publish(self, delivery):
        return delivery.target
"""


def test_a_plugin_without_a_kind_is_refused_with_the_kinds_named() -> None:
    """Otherwise nothing would ever call its ``publish``."""
    found = load_plugins({"shelf": TEXT})
    assert found.destinations == {}
    [error] = found.errors
    for kind in (StagedDestination, DriverDestination, DirectDestination):
        assert kind.__name__ in str(error)


def test_with_a_kind_it_is_found() -> None:
    """The same plugin with a name one word longer."""
    found = load_plugins({"shelf": TEXT.replace("Destination", "StagedDestination")})
    assert found.errors == []
    assert found.destinations["shelf"].placement == "staged"


def test_only_what_the_driver_publishes_to_has_publish() -> None:
    """A destination fed by a sender has no method that is never called."""
    assert not hasattr(Destination, "publish")
    assert not hasattr(DirectDestination, "publish")
    assert issubclass(DriverDestination, StagedDestination)


@pytest.mark.parametrize("name", DESTINATIONS.names())
def test_every_built_in_one_has_a_kind(name: str) -> None:
    """Its placement is that of the class the engine asks for."""
    kind = DESTINATIONS.find(name, {})
    assert kind is not None
    assert issubclass(kind, StagedDestination) == (kind.placement != "direct")
    assert issubclass(kind, DirectDestination) == (kind.placement == "direct")
