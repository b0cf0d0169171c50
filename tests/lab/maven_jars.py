"""Jars of other projects for tests, fetched once by Ivy, which comes with PySpark, and kept outside of the checkout."""

from __future__ import annotations

import os
import subprocess
import tempfile
from pathlib import Path
from typing import NamedTuple

from conduit_dagster.spark.java import find_java

_CACHE = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "conduit-dagster"


class NoJarsError(RuntimeError):
    """Raised if the jars, or a Java, are not available."""


class JarSet(NamedTuple):
    """Modules with all their dependencies."""

    name: str
    """Name of their folder."""
    modules: tuple[tuple[str, str, str], ...]
    """Group, module and version of each."""
    least: int
    """Minimum number of jars: fewer mean an incomplete download."""

    def folder(self, given: str | None = None) -> Path:
        """Return the folder with the jars, or the given one; it appears with one rename. Raises ``NoJarsError``."""
        folder = Path(given or _CACHE / self.name)
        if self._is_whole(folder):
            return folder
        folder.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(dir=folder.parent, prefix=f".{self.name}-") as aside:
            self._fetch(Path(aside))
            try:
                (Path(aside) / "jars").rename(folder)
            except OSError:
                # another process was first
                if not self._is_whole(folder):
                    raise
        return folder

    def _is_whole(self, folder: Path) -> bool:
        return len(list(folder.glob("*.jar"))) >= self.least

    def _fetch(self, aside: Path) -> None:
        lines: list[str] = []
        for module in self.modules:
            command = _command(aside, module)
            try:
                ran = subprocess.run(command, capture_output=True, text=True, timeout=300, check=False)
            except subprocess.TimeoutExpired:
                raise NoJarsError(f"{self.name} could not be fetched within five minutes") from None
            lines += (ran.stdout + ran.stderr).strip().splitlines()
        if not self._is_whole(aside / "jars"):
            raise NoJarsError(f"{self.name} could not be fetched: {lines[-1] if lines else 'no reason given'}")


def java() -> str:
    """Return the program that runs jars. Raises ``NoJarsError`` without a Java."""
    found = find_java()
    if found is None:
        raise NoJarsError("no Java was found")
    return str(Path(found.home) / "bin" / "java")


def _command(aside: Path, module: tuple[str, str, str]) -> list[str]:
    import pyspark

    ivy = next((Path(pyspark.__file__).parent / "jars").glob("ivy-*.jar"), None)
    if ivy is None:
        raise NoJarsError("PySpark came without Ivy")
    names = str(aside / "jars" / "[artifact]-[revision](-[classifier]).[ext]")
    main = [java(), "-cp", str(ivy), "org.apache.ivy.Main", "-error", "-cache", str(aside / "cache")]
    return [*main, "-dependency", *module, "-confs", "default", "-retrieve", names, "-types", "jar", "bundle"]
