"""What every part of the configuration has in common."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, LiteralString, Self, cast

from pydantic import BaseModel, ConfigDict, ModelWrapValidatorHandler, PrivateAttr, model_validator
from pydantic_core import PydanticCustomError

from conduit_dagster.config.tree import Mapped


def kebab(name: str) -> str:
    """The name in the file of an attribute in Python."""
    return name.replace("_", "-")


class Section(BaseModel):
    """A mapping of the file. An empty value counts as not given, as in Conduit.

    In Python a section can be made by attribute names; in a file only the names with hyphens count.
    """

    model_config = ConfigDict(
        frozen=True,
        extra="forbid",
        alias_generator=kebab,
        validate_by_name=True,
        validate_by_alias=True,
        use_attribute_docstrings=True,
    )

    _where: str = PrivateAttr(default="")

    @model_validator(mode="wrap")
    @classmethod
    def _remember_place(cls, data: Any, handler: ModelWrapValidatorHandler[Self]) -> Self:
        section = handler(_given(cls, data))
        if isinstance(data, Mapped):
            section._where = data.where
        return section

    @property
    def where(self) -> str:
        """The JSON pointer of the mapping in its document; empty for a section made in Python."""
        return self._where


def refuse(
    message: str,
    *,
    code: LiteralString = "config.field_invalid",
    expected: str | None = None,
    fix: str | None = None,
    at: str | None = None,
) -> PydanticCustomError:
    """The error of a validator: what becomes a finding.

    The value itself must stay out of the texts: it may come from the environment and be secret.
    ``at`` names the field that a rule between fields complains about.
    """
    context = {"message": message, "expected": expected, "fix": fix, "at": at}
    return PydanticCustomError(code, "{message}", context)


def _given(section: type[BaseModel], data: Any) -> Any:
    if not isinstance(data, Mapping):
        return data
    known = {kebab(name) for name in section.model_fields}
    items = cast(Mapping[str, Any], data).items()
    given = {key: value for key, value in items if key not in known or (value is not None and value != "")}
    return Mapped.at(data.where, given) if isinstance(data, Mapped) else given
