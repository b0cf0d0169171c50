"""The check ``readable`` of every source: a run evaluates it as it reads, and by itself it asks the source.

A source is an external asset: no run materialises it, so that a run which fails there would not colour it. Its check
does.
"""

from collections.abc import Iterable, Iterator, Mapping
from typing import Any

import dagster as dg
import sqlalchemy as sa

from conduit_dagster.assets.asset_checks import CheckResult
from conduit_dagster.assets.events import RunSnapshot
from conduit_dagster.assets.names import GROUP
from conduit_dagster.assets.translator import AssetKeys
from conduit_dagster.engine.bound_pipeline import BoundPipeline
from conduit_dagster.engine.catalogue import Catalogue, open_catalogue
from conduit_dagster.engine.registering import attach_kept_to_look
from conduit_dagster.engine.report import RunResult
from conduit_dagster.engine.step_context import SourceAcks
from conduit_dagster.node_ids import node_id
from conduit_dagster.recovery.classify import blamed
from conduit_dagster.recovery.errors import ConduitError
from conduit_dagster.resources.spark_resource import StateResource
from conduit_dagster.sdk import Source
from conduit_dagster.state.overview import real_source_rows

READABLE = "readable"
_TELLS = "it tells how much waits"
_ERROR = dg.AssetCheckSeverity.ERROR


def source_checks(catalogue: Catalogue, every: Iterable[AssetKeys]) -> list[dg.AssetChecksDefinition]:
    """Return the checks of the sources' assets, as one definition; none without sources. ``every``: by pipeline.

    Executing them asks each source how much waits, also while its pipeline runs: it reads no records, moves nothing and
    needs no Spark. A source that can't tell gets a warning.
    """
    said = "The source can be read: the newest run read from it, or it tells how much waits."
    sources = dict(_places(catalogue, every))
    if not sources:
        return []
    specs = [dg.AssetCheckSpec(READABLE, asset=key, description=said) for key in sources]

    @dg.multi_asset_check(name=f"{GROUP}__readable_sources", specs=specs, can_subset=True)
    def check(context: dg.AssetCheckExecutionContext, conduit_state: StateResource) -> Iterator[dg.AssetCheckResult]:
        state = conduit_state
        now = open_catalogue(state.project)
        for key in sorted(context.selected_asset_check_keys):
            pipeline, source = sources[key.asset_key]
            yield as_check_result(key.asset_key, _asked(now.get(pipeline), source, state.database))

    return [check]


def _places(catalogue: Catalogue, every: Iterable[AssetKeys]) -> Iterator[tuple[dg.AssetKey, tuple[str, str]]]:
    """Yield each source's key, with its pipeline and id."""
    for keys in every:
        bound = catalogue.get(keys.pipeline)
        for source in () if bound is None else bound.config.sources:
            yield keys.of(source.id), (keys.pipeline, source.id)


def as_check_result(key: dg.AssetKey, verdict: CheckResult) -> dg.AssetCheckResult:
    """Convert a result to the ``AssetCheckResult`` that the check's own op yields."""
    return dg.AssetCheckResult(
        passed=verdict.passed, asset_key=key, check_name=verdict.name, metadata=verdict.metadata,
        severity=verdict.severity, description=verdict.description,
    )  # fmt: skip


def source_evaluation(keys: AssetKeys, source: str, verdict: CheckResult) -> dg.AssetCheckEvaluation:
    """Convert a result to an event for ``log_event``: the check is none of the run's own."""
    return dg.AssetCheckEvaluation(
        keys.of(source), verdict.name, verdict.passed, verdict.metadata, severity=verdict.severity,
        description=verdict.description,
    )  # fmt: skip


def readable_verdicts(
    bound: BoundPipeline, look: RunSnapshot, result: RunResult | None = None
) -> Iterator[tuple[str, CheckResult]]:
    """Yield the result for each source of which the run knows one. ``result``: how the run ended.

    A run that was stopped, or failed elsewhere, before it came to a source says nothing about it.
    """
    error = None if result is None else result.error
    for source in bound.config.sources:
        if error is not None and error.node == node_id(bound.id, source.id):
            yield source.id, _unreadable(error)
        elif look.progress.sources.get(source.id) or (result is not None and result.drained):
            yield source.id, _readable("it was read")
        elif error is None and result is None and source.id in look.lag:
            yield source.id, _readable(_TELLS)


def _readable(text: str) -> CheckResult:
    return CheckResult(READABLE, True, text, {})


def _unreadable(error: ConduitError) -> CheckResult:
    text = f"{error.message}; fix: {error.fix}" if error.fix else error.message
    facts: dict[str, Any] = {"error_code": error.code, "error": error.message, "place": error.place, "fix": error.fix}
    return CheckResult(READABLE, False, text, {name: value for name, value in facts.items() if value}, _ERROR)


def _asked(bound: BoundPipeline | None, source: str, database: sa.Engine) -> CheckResult:
    """Ask the source how much waits: the one question that is allowed while the pipeline may run elsewhere."""
    node = None if bound is None else next((one for one in bound.compiled.sources if one.id == source), None)
    if bound is None or node is None:
        text = "its pipeline can't run, or has no such source any more: conduit-dagster validate shows the mistakes"
        return CheckResult(READABLE, False, text, {}, _ERROR)
    known = {row["id"]: row["position"] for row in real_source_rows(database, bound.id)}
    try:
        attach_kept_to_look(bound.compiled, database)
        lag = blamed(node_id(bound.id, source), _lag, node.source, known, source)
    except ConduitError as error:
        return _unreadable(error)
    finally:
        SourceAcks(bound.compiled).close()
    if lag is None:
        return CheckResult(READABLE, False, "it can't tell how much waits: only a run finds out", {})
    return CheckResult(READABLE, True, _TELLS, {f"lag_{node.source.lag_unit}": lag})


def _lag(source: Source, known: Mapping[str, Any], name: str) -> int | None:
    return source.lag(known[name] if name in known else source.initial())
