"""What is worth an alert now: a pure function of what was reported and of how pipelines stand."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Literal

from msgspec.structs import replace

from conduit_dagster.alerts.seen import Letters, OfPipeline, Seen
from conduit_dagster.alerts.standing import Standing

Kind = Literal["degraded", "dead-letters"]


@dataclass(frozen=True)
class Rules:
    """What is reported."""

    on: frozenset[Kind] = frozenset({"degraded", "dead-letters"})
    growth: int = 1
    """So many new dead letters within the interval are."""
    interval: float = 300.0
    """Seconds."""


@dataclass(frozen=True)
class Alert:
    """Something worth a message."""

    kind: Kind
    standing: Standing
    new: int = 0
    """New dead letters."""
    since_ns: int = 0


@dataclass(frozen=True)
class Decided:
    """What is to be sent, and what was reported once all of it is."""

    alerts: list[Alert]
    seen: Seen


def decide(seen: Seen | None, standings: Iterable[Standing], rules: Rules, now_ns: int) -> Decided:
    """``seen`` None: nothing is known of what was reported. Then every degraded pipeline is, and dead letters count
    from now on.
    """
    alerts, pipelines = list[Alert](), dict[str, OfPipeline]()
    for one in standings:
        known = OfPipeline(letters=Letters(one.dead_letters, now_ns)) if seen is None else seen.of(one.pipeline)
        outage, degraded = _outage(known, one) if "degraded" in rules.on else ("", None)
        letters, grown = _letters(known.letters, one, rules, now_ns) if "dead-letters" in rules.on else (None, None)
        alerts += [alert for alert in (degraded, grown) if alert is not None]
        pipelines[one.pipeline] = OfPipeline(outage, letters)
    return Decided(alerts, Seen(pipelines))


def _outage(known: OfPipeline, one: Standing) -> tuple[str, Alert | None]:
    if one.status != "degraded":
        return "", None
    return one.outage, None if known.outage == one.outage else Alert("degraded", one)


def _letters(known: Letters | None, one: Standing, rules: Rules, now_ns: int) -> tuple[Letters, Alert | None]:
    window = known or Letters(0, now_ns)
    if one.dead_letters < window.base:
        return Letters(one.dead_letters, now_ns), None  # another store
    if window.since_ns > now_ns:
        window = replace(window, since_ns=now_ns)  # the clock was set back
    over = now_ns - window.since_ns >= rules.interval * 1e9
    if window.told and not over:
        return window, None
    new = one.dead_letters - window.base
    if new >= rules.growth:
        return Letters(one.dead_letters, now_ns, told=True), Alert("dead-letters", one, new, window.since_ns)
    return Letters(one.dead_letters, now_ns) if over else window, None


def unsent(decided: Seen, before: Seen | None, alert: Alert) -> Seen:
    """What was reported where this alert could not be sent: it is decided upon again."""
    pipeline = alert.standing.pipeline
    known, was = decided.of(pipeline), OfPipeline() if before is None else before.of(pipeline)
    if alert.kind == "degraded":
        return decided.but(pipeline, replace(known, outage=was.outage))
    # the window goes on, however long it is: what is in it was not reported
    return decided.but(
        pipeline, replace(known, letters=Letters(alert.standing.dead_letters - alert.new, alert.since_ns))
    )
