"""A pytest plugin that runs each of the ``tests:`` of a pipeline file as a separate test.

It collects YAML files that contain pipelines with tests; the project is found from the file's folder. Starts neither
Spark nor Dagster.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

import pytest

_SUFFIXES: Final = (".yaml", ".yml")
_MARKS: Final = (b"pipelines:", b"connectors:", b"tests:")
"""Keys of a pipeline with tests. Files of CI services such as Bitbucket's have ``pipelines:`` too."""


class CaseError(Exception):
    """Raised for a pipeline test with unexpected results; its text locates them."""


def pytest_collect_file(file_path: Path, parent: pytest.Collector) -> PipelineTestFile | None:
    """Collect a pipeline file. Called by pytest for each file."""
    if file_path.suffix not in _SUFFIXES or not file_path.is_file():
        return None
    text = file_path.read_bytes()
    if not all(mark in text for mark in _MARKS):
        return None
    return PipelineTestFile.from_parent(parent, path=file_path)


class PipelineTestFile(pytest.File):
    """A file of pipelines."""

    def collect(self) -> Iterator[pytest.Item]:
        """Yield its tests. A file with mistakes is one test that fails."""
        from conduit_dagster.config.project import Project
        from conduit_dagster.engine.bound_pipeline import open_catalogue

        catalogue = open_catalogue(Project.find(self.path.parent), [self.path])
        if errors := [finding.render() for finding in catalogue.findings if finding.is_error]:
            raise self.CollectError("\n".join(errors))
        for bound in catalogue.bound:
            for case in bound.config.tests:
                name = f"{bound.id}: {case.name}"
                yield PipelineCase.from_parent(self, name=name, bound=bound, case=case, plugins=catalogue.plugins)


class PipelineCase(pytest.Item):
    """One test of a pipeline."""

    def __init__(self, *, bound: Any, case: Any, plugins: Any, **more: Any) -> None:
        super().__init__(**more)
        self._bound, self._case, self._plugins = bound, case, plugins

    def runtest(self) -> None:
        """Run the test. Raises :class:`CaseError`."""
        from conduit_dagster.engine.trial.cases import run_case

        verdict = run_case(self._bound, self._case, self._plugins)
        if not verdict.passed:
            raise CaseError("\n".join(_text(flaw) for flaw in verdict.flaws))

    def repr_failure(self, excinfo: pytest.ExceptionInfo[BaseException], style: Any = None) -> Any:
        """Return the unexpected results, without a stack trace."""
        if isinstance(excinfo.value, CaseError):
            return str(excinfo.value)
        return super().repr_failure(excinfo, style)

    def reportinfo(self) -> tuple[Path, int | None, str]:
        """Return its file and name."""
        return self.path, None, self.name


def _text(flaw: Any) -> str:
    return f"{flaw.where}\n  expected {flaw.expected!r}\n  got      {flaw.got!r}"
