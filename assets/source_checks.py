"""The check ``readable`` of every source: evaluated by a run while it reads, or executed alone by querying the source.

A source is an external asset: no run materialises it, so a run that fails there does not mark it as failed. Its check
does.
"""

from collections.abc import Iterable, Iterator
from typing import Any

import dagster as dg
import sqlalchemy as sa

from conduit_dagster.assets.asset_checks import CheckResult, as_result
from conduit_dagster.assets.events import RunSnapshot
from conduit_dagster.assets.names import GROUP
from conduit_dagster.assets.translator import AssetKeys
from conduit_dagster.daemon_threads import BY_HAND, answer_within
from conduit_dagster.engine.bound_pipeline import BoundPipeline
from conduit_dagster.engine.catalogue import Catalogue, open_catalogue
from conduit_dagster.engine.closing import close_sources
from conduit_dagster.engine.registering import attach_kept_to_look
from conduit_dagster.engine.report import RunResult
from conduit_dagster.engine.source_nodes import SourceNode
from conduit_dagster.node_ids import node_id
from conduit_dagster.recovery.classify import blamed
from conduit_dagster.recovery.errors import ConduitError
from conduit_dagster.resources.spark_resource import StateResource
from conduit_dagster.state.overview import source_rows

READABLE = "readable"
_TELLS = "it reports how much waits"
_ERROR = dg.AssetCheckSeverity.ERROR


def source_checks(catalogue: Catalogue, every: Iterable[AssetKeys]) -> list[dg.AssetChecksDefinition]:
    """Return the checks of the sources' assets, as one definition; none without sources. ``every``: by pipeline.

    Executing them queries each source for its lag, also while its pipeline runs: it reads no records, moves nothing and
    needs no Spark. A source without a lag gets a warning.
    """
    said = "The source can be read: the newest run read from it, or it reports how much waits."
    sources = dict(_places(catalogue, every))
    if not sources:
        return []
    specs = [dg.AssetCheckSpec(READABLE, asset=key, description=said) for key in sources]

    @dg.multi_asset_check(name=f"{GROUP}__readable_sources", specs=specs, can_subset=True)
    def check(context: dg.AssetCheckExecutionContext, conduit_state: StateResource) -> Iterator[dg.AssetCheckResult]:
        now = open_catalogue(conduit_state.project)
        for key in sorted(context.selected_asset_check_keys):
            keys, source = sources[key.asset_key]
            yield as_result(keys, _asked(now.get(keys.pipeline), source, conduit_state))

    return [check]


def _places(catalogue: Catalogue, every: Iterable[AssetKeys]) -> Iterator[tuple[dg.AssetKey, tuple[AssetKeys, str]]]:
    """Yield each source's key, with the keys of its pipeline and its id."""
    for keys in every:
        bound = catalogue.get(keys.pipeline)
        for source in () if bound is None else bound.config.sources:
            yield keys.of(source.id), (keys, source.id)


def readable_verdicts(
    bound: BoundPipeline, snapshot: RunSnapshot, result: RunResult | None = None
) -> Iterator[CheckResult]:
    """Yield the result for each source that the run has one for. ``result``: result of the run.

    A run that was stopped, or failed elsewhere, before it reached a source proves nothing about it.
    """
    error = None if result is None else result.error
    for source in bound.config.sources:
        if error is not None and error.node == node_id(bound.id, source.id):
            yield _unreadable(source.id, error)
        elif snapshot.progress.sources.get(source.id) or (result is not None and result.drained):
            yield _readable(source.id, "it was read")
        elif error is None and result is None and source.id in snapshot.lag:
            yield _readable(source.id, _TELLS)


def _readable(source: str, text: str, **facts: Any) -> CheckResult:
    return CheckResult(READABLE, True, text, facts, source=source)


def _unreadable(source: str, error: ConduitError) -> CheckResult:
    text = f"{error.message}; fix: {error.fix}" if error.fix else error.message
    facts: dict[str, Any] = {"error_code": error.code, "error": error.message, "place": error.place, "fix": error.fix}
    return CheckResult(READABLE, False, text, {name: value for name, value in facts.items() if value}, _ERROR, source)


def _asked(bound: BoundPipeline | None, source: str, state: StateResource) -> CheckResult:
    """Query the source for its lag: the only query allowed while the pipeline may run elsewhere."""
    node = None if bound is None else next((one for one in bound.compiled.sources if one.id == source), None)
    if bound is None or node is None:
        text = "its pipeline can't run, or has no such source any more: conduit-dagster validate shows the mistakes"
        return CheckResult(READABLE, False, text, {}, _ERROR, source)
    try:
        database = state.database
        lag = answer_within(node.source, lambda: _lag(bound, node, database), BY_HAND)
    except ConduitError as error:
        return _unreadable(source, error)
    except TimeoutError as error:
        return CheckResult(READABLE, False, f"it hangs when asked how much waits: {error}", {}, _ERROR, source)
    if lag is None:
        return CheckResult(READABLE, False, "it can't report how much waits: only a run finds out", {}, source=source)
    return _readable(source, _TELLS, **{f"lag_{node.source.lag_unit}": lag})


def _lag(bound: BoundPipeline, node: SourceNode, database: sa.Engine) -> int | None:
    """Return the source's lag, and close the pipeline's sources: a connector that hangs may do so there as well."""
    try:
        known = {row["id"]: row["position"] for row in source_rows(database, bound.id)}
        attach_kept_to_look(bound.compiled, database)
        return blamed(node.node, node.lag, known)
    finally:
        close_sources(bound.compiled)
