"""How a run goes: its config in Dagster, the environment, the defaults, in this order."""

from __future__ import annotations

import os
from typing import cast

import dagster as dg
from pydantic import Field, TypeAdapter, ValidationError

from conduit_dagster.config.scalars import PositiveDuration
from conduit_dagster.recovery.errors import FatalError

_DEFAULTS = {"materialize_every": "30s", "end_after": "24h", "max_ack_lag": "5m"}
_DRAIN = (
    "End when the sources are drained. Without it the pipeline's own job does what its file says, and any "
    "other run drains."
)
_EVERY = "How often assets are materialised at most; else CONDUIT_MATERIALIZE_EVERY, else 30s."
_END = (
    "When a run ends to be started anew, since Dagster keeps about 3 KB for every event of a run; else "
    "CONDUIT_END_AFTER, else 24h."
)
_LAG = "How long records may wait for an ack before the check ack_lag fails; else CONDUIT_MAX_ACK_LAG, else 5m."
_duration: TypeAdapter[float] = TypeAdapter(PositiveDuration)


class RunConfig(dg.Config):
    """What one run may be told. Durations as in pipeline files: ``30s``, ``5m``."""

    drain: bool | None = Field(default=None, description=_DRAIN)
    materialize_every: str | None = Field(default=None, description=_EVERY)
    end_after: str | None = Field(default=None, description=_END)
    max_ack_lag: str | None = Field(default=None, description=_LAG)

    def seconds(self, name: str) -> float:
        """A duration by the name of its field. Raises ``FatalError`` for what is none."""
        variable = f"CONDUIT_{name.upper()}"
        text = cast("str | None", getattr(self, name)) or os.environ.get(variable) or _DEFAULTS[name]
        try:
            return _duration.validate_python(text)
        except ValidationError as error:
            raise FatalError(
                f"{name} is no duration: {text}",
                code="run.config",
                fix=f"set {name} in the run's config, or {variable}, to a duration such as {_DEFAULTS[name]}",
            ) from error
