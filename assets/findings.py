"""How a broken pipeline file shows: it has no job, and an asset in its place says why."""

import logging
from collections import defaultdict
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

import dagster as dg

from assets.names import GROUP, asset_key, job_name
from assets.places import code_references
from conduit_dagster.config.findings import Finding
from conduit_dagster.config.folder import Loaded
from conduit_dagster.engine.catalogue import Catalogue, open_catalogue
from resources.state import StateResource

PIPELINE_FILES = dg.AssetKey([GROUP, "pipeline_files"])
NO_BROKEN_FILES = "no_broken_files"
_BROKEN = "broken"
# stderr: what is printed on stdout belongs to commands such as `dg list defs --json`
_log = logging.getLogger("conduit.dagster")

Broken = dict[str, list[Finding]]


def broken_pipelines(loaded: Loaded) -> Broken:
    """The errors by pipeline, and by file where no pipeline could be read."""
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
    """Says on stderr what is wrong, for whoever starts Dagster."""
    for finding in findings:
        if finding.is_error:
            _log.warning("%s", finding.render())


def broken_assets(broken: Broken) -> Iterator[dg.AssetSpec]:
    """One asset in place of each broken pipeline: found under its name, with the mistake and the way out."""
    for name, findings in broken.items():
        yield dg.AssetSpec(
            asset_key(name, _BROKEN),
            description=f"**This pipeline cannot run.**\n\n{_as_markdown(findings)}",
            kinds={_BROKEN},
            group_name=job_name(name) or GROUP,
            metadata={"conduit/findings": _table(findings), **_places(findings)},
        )


def pipeline_files(catalogue: Catalogue) -> dg.AssetsDefinition:
    """The asset of all pipeline files. Materialising it checks them again, without Spark."""
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
    def check_files(state: StateResource) -> Iterator[dg.MaterializeResult[Any]]:
        yield _checked(open_catalogue(state.project))

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
    """Not as a terminal shows it: the UI cuts long lines of code off."""
    return "\n\n".join(map(_paragraph, findings))


def _paragraph(finding: Finding) -> str:
    facts = (("got", finding.got), ("expected", finding.expected), ("fix", finding.fix))
    lines = [f"- {name}: {text}" for name, text in facts if text is not None]
    place = f"{finding.file}:{finding.line}:{finding.column}"
    at = f" at `{finding.path}`" if finding.path else ""
    return "\n".join([f"**{finding.message}** ({finding.code})", f"- {place}{at}", *lines])


def _table(findings: Iterable[Finding]) -> dg.TableMetadataValue:
    names = ("severity", "code", "place", "message", "fix")
    schema = dg.TableSchema([dg.TableColumn(name, "string") for name in names])
    return dg.MetadataValue.table([_row(finding) for finding in findings], schema)


def _row(finding: Finding) -> dg.TableRecord:
    place = f"{finding.file}:{finding.line}:{finding.column}"
    return dg.TableRecord(
        {"severity": finding.severity, "code": finding.code, "place": place}
        | {"message": finding.message, "fix": finding.fix or ""}
    )


def _places(findings: Iterable[Finding]) -> dict[str, dg.CodeReferencesMetadataValue]:
    return code_references((finding.file, finding.line, finding.code) for finding in findings)
