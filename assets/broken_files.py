"""Broken pipeline files in Dagster: no job, and in place of the pipeline an asset with the errors."""

import logging
from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any

import dagster as dg

from conduit_dagster.assets.names import GROUP, asset_key, code_references, job_name
from conduit_dagster.config.findings import Finding
from conduit_dagster.config.folder import LoadedFiles
from conduit_dagster.engine.bound_pipeline import Catalogue, open_catalogue
from conduit_dagster.resources.spark_resource import StateResource

PIPELINE_FILES = dg.AssetKey([GROUP, "pipeline_files"])
NO_BROKEN_FILES = "no_broken_files"
CAN_RUN = "can_run"
"""Check of the asset that represents a broken pipeline."""
BROKEN_PIPELINES = f"{GROUP}__broken_pipelines"
"""Op of these checks."""
_BROKEN = "broken"
_RELOAD = "its file is valid now: conduit-dagster pipelines reload loads it"
# stderr: stdout belongs to the output of commands such as `dg list defs --json`
_log = logging.getLogger("conduit.dagster")

Broken = dict[str, list[Finding]]


def broken_pipelines(loaded: LoadedFiles) -> Broken:
    """Return the errors by pipeline, or by file if no pipeline could be read."""
    found: Broken = defaultdict(list)
    for file in loaded.files:
        for finding in file.problems:
            if finding.is_error:
                found[Path(file.file).stem].append(finding)
        for pipeline in file.pipelines:
            errors = [finding for finding in pipeline.findings if finding.is_error]
            if errors:
                found[pipeline.config.id or Path(file.file).stem].extend(errors)
    return found


def warn(findings: Iterable[Finding]) -> None:
    """Log the errors to stderr, for the user who starts Dagster."""
    for finding in findings:
        if finding.is_error:
            _log.warning("%s", finding.render())


def _broken_key(name: str) -> dg.AssetKey:
    # longer than any connector's key: a connector may be named broken
    return dg.AssetKey([*asset_key(name, _BROKEN).path, "file"])


def broken_assets(broken: Broken) -> Iterator[dg.AssetSpec]:
    """Yield an asset in place of each broken pipeline: listed under its name, with the errors and their fixes."""
    for name, findings in broken.items():
        places = ((finding.file, finding.line, finding.code) for finding in findings)
        yield dg.AssetSpec(
            _broken_key(name),
            description=f"**This pipeline cannot run.**\n\n{_as_markdown(findings)}",
            kinds={_BROKEN},
            group_name=job_name(name) or GROUP,
            metadata={"conduit/findings": _table(findings), **code_references(places)},
        )


def broken_checks(names: Iterable[str]) -> Iterator[dg.AssetChecksDefinition]:
    """Yield the checks of the assets that represent broken pipelines; the lifecycle sensor evaluates them too.

    ``names``: those whose files have errors. A refusal by Dagster can't be detected again from the file alone.
    """
    said = "The pipeline's file is valid."
    specs = [dg.AssetCheckSpec(CAN_RUN, asset=_broken_key(name), description=said) for name in names]
    if not specs:
        return

    @dg.multi_asset_check(name=BROKEN_PIPELINES, specs=specs)
    def check(conduit_state: StateResource) -> Iterator[dg.AssetCheckResult]:
        broken = _by_key(open_catalogue(conduit_state.project))
        for spec in specs:
            passed, text, metadata = _can_run(broken.get(spec.asset_key, []))
            yield dg.AssetCheckResult(
                passed=passed, asset_key=spec.asset_key, check_name=CAN_RUN, description=text, metadata=metadata
            )

    yield check


def _by_key(catalogue: Catalogue) -> dict[dg.AssetKey, list[Finding]]:
    return {_broken_key(name): findings for name, findings in broken_pipelines(catalogue.loaded).items()}


def _can_run(findings: Sequence[Finding]) -> tuple[bool, str, dict[str, Any]]:
    text = "; ".join(finding.message for finding in findings) or _RELOAD
    return not findings, text, {"conduit/findings": _table(findings)}


class FileEvents:
    """Events for the assets of pipeline files whenever these change. Remembers which pipelines were broken."""

    def __init__(self) -> None:
        self._broken = set[dg.AssetKey]()

    def of(self, catalogue: Catalogue) -> Iterator[dg.AssetMaterialization | dg.AssetCheckEvaluation]:
        """Yield the same results as materialising ``pipeline_files`` and checking the broken pipelines."""
        checked = _checked(catalogue)
        yield dg.AssetMaterialization(PIPELINE_FILES, metadata=checked.metadata)
        for result in checked.check_results or ():
            yield dg.AssetCheckEvaluation(PIPELINE_FILES, NO_BROKEN_FILES, result.passed, result.metadata)
        broken = _by_key(catalogue)
        for key in sorted(self._broken | broken.keys()):
            passed, text, metadata = _can_run(broken.get(key, []))
            yield dg.AssetCheckEvaluation(key, CAN_RUN, passed, metadata, description=text)
        self._broken = set(broken)


def pipeline_files(catalogue: Catalogue) -> dg.AssetsDefinition:
    """Return the asset of all pipeline files. Materialising it checks them again, without Spark."""
    findings = catalogue.findings

    @dg.asset(
        key=PIPELINE_FILES,
        group_name=GROUP,
        kinds={"yaml"},
        description=_summary(catalogue),
        metadata=_numbers(catalogue) | ({"conduit/findings": _table(findings)} if findings else {}),
        check_specs=[
            dg.AssetCheckSpec(
                NO_BROKEN_FILES, asset=PIPELINE_FILES, description="Every pipeline of the project can run."
            )
        ],
    )
    def check_files(conduit_state: StateResource) -> Iterator[dg.MaterializeResult[Any]]:
        yield _checked(open_catalogue(conduit_state.project))

    return check_files


def _checked(catalogue: Catalogue) -> dg.MaterializeResult[Any]:
    errors = [finding for finding in catalogue.findings if finding.is_error]
    metadata = _numbers(catalogue) | {"conduit/findings": _table(catalogue.findings)}
    result = dg.AssetCheckResult(
        passed=not errors, check_name=NO_BROKEN_FILES, metadata={"conduit/findings": _table(errors)}
    )
    return dg.MaterializeResult(metadata=metadata, check_results=[result])


def _numbers(catalogue: Catalogue) -> dict[str, Any]:
    errors = sum(finding.is_error for finding in catalogue.findings)
    return {
        "files": len(catalogue.loaded.files),
        "pipelines": len(catalogue.loaded.pipelines),
        "runnable": len(catalogue.bound),
        "errors": errors,
        "warnings": len(catalogue.findings) - errors,
    }


def _summary(catalogue: Catalogue) -> str:
    errors = [finding for finding in catalogue.findings if finding.is_error]
    text = f"{len(catalogue.bound)} of {len(catalogue.loaded.pipelines)} pipelines can run"
    return f"{text}.\n\n{_as_markdown(errors)}" if errors else f"{text}."


def _as_markdown(findings: Iterable[Finding]) -> str:
    """Return the findings as Markdown, not in the terminal's layout: the UI cuts off long lines of code."""
    return "\n\n".join(map(_paragraph, findings))


def _paragraph(finding: Finding) -> str:
    facts = (("got", finding.got), ("expected", finding.expected), ("fix", finding.fix))
    lines = [f"- {name}: {text}" for name, text in facts if text is not None]
    at = f" at `{finding.path}`" if finding.path else ""
    return "\n".join([f"**{finding.message}** ({finding.code})", f"- {finding.place}{at}", *lines])


def _table(findings: Iterable[Finding]) -> dg.TableMetadataValue:
    names = ("severity", "code", "place", "message", "fix")
    schema = dg.TableSchema([dg.TableColumn(name, "string") for name in names])
    rows = [dg.TableRecord({name: getattr(finding, name) or "" for name in names}) for finding in findings]
    return dg.MetadataValue.table(rows, schema)
