"""Settings of the ``chaos`` connectors that say what goes wrong, when and how often."""

from __future__ import annotations

from typing import Literal

from pydantic import Field, field_validator, model_validator
from pydantic_core import PydanticCustomError

from conduit_dagster.config.scalars import Duration
from conduit_dagster.recovery.codes import class_of
from conduit_dagster.sdk import ConnectorSettings


def refused(message: str, fix: str) -> PydanticCustomError:
    """A finding about settings that do not go together."""
    return PydanticCustomError("chaos", "{message}", {"message": message, "fix": fix})


def as_code(text: str) -> int | str:
    """An error code as an author would write it in Python."""
    return int(text) if text.isdecimal() else text


class FaultSettings(ConnectorSettings):
    """What goes wrong. Each connector adds ``fail-on``, the points where something can."""

    mode: Literal["error", "hang", "slow", "nack"] = "error"
    """``error`` raises; ``hang`` waits for ``hang-for`` and goes on; ``slow`` waits for ``slow-by`` each time;
    ``nack``, only with ``fail-on: write``, refuses records."""
    after: int = Field(0, ge=0)
    """How many records get through first, over the pipeline's life."""
    times: str = "always"
    """How often: ``once``, a number, or ``always``. It is counted over the pipeline's life, whatever is killed."""
    code: str = ""
    """The error's code, a number or a dotted name. Empty: an exception that says nothing about itself."""
    fatal: bool | None = None
    """Whether the error is fatal or transient. Not given: as ``code`` says; without a code nothing is said."""
    text: Literal["plain", "json"] = "plain"
    """``json``: an ordinary exception whose text is JSON with ``code`` and ``message``."""
    hang_for: Duration = Field(600.0, alias="hang-for")
    """How long a hang lasts, unless its task is cancelled first, or ``until`` or ``while`` ends it."""
    slow_by: Duration = Field(1.0, alias="slow-by")
    """How long each call, or each block of records, is held up."""
    until: str = ""
    """A file, from the project root: nothing goes wrong any more once it exists."""
    while_: str = Field("", alias="while")
    """A file, from the project root: things go wrong only while it exists."""

    @property
    def limit(self) -> int | None:
        """``times`` as a number; None for always."""
        return {"always": None, "once": 1}[self.times] if self.times in ("always", "once") else int(self.times)

    @field_validator("times")
    @classmethod
    def _check_times(cls, times: str) -> str:
        if times not in ("once", "always") and not (times.isdecimal() and int(times) > 0):
            expected = "once, always, or a number of 1 or more"
            raise PydanticCustomError("chaos", "this is no number of times", {"expected": expected})
        return times

    @field_validator("code")
    @classmethod
    def _check_code(cls, code: str) -> str:
        if code and class_of(as_code(code)) is None:
            raise PydanticCustomError(
                "chaos",
                "there is no such error code",
                {"expected": "a code of docs/error-codes.md", "fix": "for example 503 (transient) or 422 (fatal)"},
            )
        return code

    @model_validator(mode="after")
    def _check_together(self) -> FaultSettings:
        if self.mode == "nack" and getattr(self, "fail_on", "none") != "write":
            raise refused("only a destination's write can nack", "set fail-on: write, or another mode")
        if self.text == "json" and not self.code:
            raise refused("an error as JSON needs a code", "set code, or text: plain")
        if self.text == "json" and self.fatal is not None:
            raise refused("the code of an error as JSON decides whether it is fatal", "remove fatal, or text: json")
        if self.until and self.while_:
            raise refused("until and while are both set", "set one of them")
        return self
