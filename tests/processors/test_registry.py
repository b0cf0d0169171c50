"""Finding a processor by the name used in a pipeline file."""

from __future__ import annotations

import pytest

from conduit_dagster.builtin_plugins import PROCESSORS
from conduit_dagster.cli.reference import settings_of
from conduit_dagster.processors.field_set import FieldSet
from conduit_dagster.sdk import Processor


def test_every_module_is_a_plugin_of_its_name() -> None:
    """``ls`` is the catalogue: each module defines the processor its name promises, with its settings."""
    assert set(PROCESSORS.all()) == set(PROCESSORS.names()) >= {"field.set", "json.decode", "filter", "error"}
    for name, kind in PROCESSORS.all().items():
        assert kind.name == name
        assert kind.__doc__
        for setting in settings_of(kind.Settings, {}):
            assert setting.description


@pytest.mark.parametrize("name", ["field.set", "builtin:field.set", "builtin:field.set@v0.1.0", "field.set@latest"])
def test_finds_as_conduit_writes_it(name: str) -> None:
    """With and without the prefix and a version."""
    assert PROCESSORS.find(name, {}) is FieldSet


@pytest.mark.parametrize("name", ["field_set", "base", "registry", "settings", "in.place", "", "builtin:", "os.path"])
def test_finds_nothing_else(name: str) -> None:
    """A module of this package that is not a plugin is not found, nor is anything outside."""
    assert PROCESSORS.find(name, {}) is None


def test_a_users_own_goes_first_by_its_very_name() -> None:
    """The built-in of the same name is still available with its prefix."""

    class Own(Processor):
        name = "field.set"

    assert PROCESSORS.find("field.set", {"field.set": Own}) is Own
    assert PROCESSORS.find("builtin:field.set", {"field.set": Own}) is FieldSet
    assert PROCESSORS.find("my.own", {"my.own": Own}) is Own


def test_settings_have_a_schema() -> None:
    """``describe`` and the reference page are generated from it."""
    assert set(FieldSet.Settings.model_json_schema()["properties"]) == {"field", "value", "expression"}
