"""The locked packages are those that the package needs, for each Python and machine that it is made for."""

from __future__ import annotations

import tomllib
from collections.abc import Iterator
from typing import Any

import pytest
from lab.modules import ROOT
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

PROJECT: dict[str, Any] = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]


def needed(extra: str | None = None) -> Iterator[Requirement]:
    """Of the package or an extra, with the extras that this one is made of."""
    listed = PROJECT["dependencies"] if extra is None else PROJECT["optional-dependencies"][extra]
    for one in map(Requirement, listed):
        if one.name == PROJECT["name"]:
            for inner in one.extras:
                yield from needed(inner)
        else:
            yield one


@pytest.mark.parametrize("machine", ["x86_64", "aarch64"])
@pytest.mark.parametrize("python", ["3.11", "3.12", "3.13", "3.14"])
def test_what_the_package_needs_is_locked(python: str, machine: str) -> None:
    place = {
        "python_version": python,
        "python_full_version": f"{python}.1",
        "platform_machine": machine,
        "sys_platform": "linux",
    }
    locked = dict[str, Requirement]()
    for line in (ROOT / "requirements.lock").read_text().splitlines():
        one = Requirement(line)
        if one.marker is None or one.marker.evaluate(place):
            locked[canonicalize_name(one.name)] = one
    wanted = [one for one in (*needed(), *needed("dev")) if one.marker is None or one.marker.evaluate(place)]
    assert [one.name for one in wanted if canonicalize_name(one.name) not in locked] == []
    for one in wanted:
        [version] = locked[canonicalize_name(one.name)].specifier
        assert one.specifier.contains(version.version), one
