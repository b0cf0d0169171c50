"""The alert sensor: reports degraded pipelines and dead letters to the project's webhook."""

from __future__ import annotations

import time
from collections.abc import Callable

import dagster as dg

from conduit_dagster.alerts.decide import Alert, AlertRules, body, decide, seen_of, standings, unsent
from conduit_dagster.alerts.webhook import Webhook
from conduit_dagster.config.project import Project
from conduit_dagster.recovery.errors import TransientError
from conduit_dagster.sensors.known import CachedStore

_BUDGET = 20.0
"""Seconds within which sending may begin: Dagster ends a tick after 60 s."""


def alert_sensor(project: Project) -> dg.SensorDefinition:
    """Return the alert sensor of a code location. Its cursor holds the reported state, and nothing secret.

    An alert may arrive twice, if a tick ends after it was sent and before the cursor is stored. Nothing is reported
    without ``alerts.webhook``.
    """
    reporter = _Reporter(project)

    @dg.sensor(
        name="conduit_alerts",
        minimum_interval_seconds=30,
        default_status=dg.DefaultSensorStatus.RUNNING,
        description="Reports degraded pipelines and new dead letters to the webhook of conduit.yaml.",
    )
    def conduit_alerts(context: dg.SensorEvaluationContext) -> dg.SensorResult:
        return reporter.run(context)

    return conduit_alerts


class _Reporter:
    """State and logic of the sensor; lives as long as the code server's process."""

    def __init__(self, project: Project) -> None:
        self._root = project.root
        self._store = CachedStore()

    def run(self, context: dg.SensorEvaluationContext) -> dg.SensorResult:
        """Decide on alerts and send them. Errors of the state store propagate: Dagster shows them and tries again."""
        project = Project.find(self._root)
        settings = project.settings.alerts
        if settings.webhook is None:
            return dg.SensorResult(skip_reason=_no_webhook(project))
        before, now_ns = seen_of(context.cursor), time.time_ns()
        rules = AlertRules(frozenset(settings.on), settings.dead_letter_growth, settings.interval)
        decided = decide(before, standings(self._store.of(project)), rules, now_ns)
        webhook = Webhook(settings.webhook, settings.headers, allow_private=settings.allow_private)
        # sent one by one: a failure does not affect the others
        failed = _send(
            decided.alerts,
            lambda alert: webhook.send(body(alert, project.root.name, now_ns)),
            context.log.warning,
        )
        seen = decided.seen
        for alert in failed:
            seen = unsent(seen, before, alert)
        every = len(decided.alerts)
        told = f"{every - len(failed)} of {every} alerts were sent to {webhook.host}" if every else "nothing to report"
        return dg.SensorResult(skip_reason=told, cursor=seen.text())


def _send(alerts: list[Alert], send: Callable[[Alert], None], warn: Callable[[str], None]) -> list[Alert]:
    """Send the alerts; return those that could not be sent."""
    failed, until = list[Alert](), time.monotonic() + _BUDGET
    for alert in alerts:
        try:
            if time.monotonic() > until:
                failed.append(alert)
                continue
            send(alert)
        except TransientError as error:
            failed.append(alert)
            warn(f"the alert {alert.kind} of pipeline {alert.standing.pipeline} was not sent: {error.message}")
    return failed


def _no_webhook(project: Project) -> str:
    if any(finding.is_error for finding in project.findings):
        return "conduit.yaml has mistakes, so there is no webhook: conduit-dagster validate shows them"
    return "there is no webhook: set alerts.webhook in conduit.yaml"
