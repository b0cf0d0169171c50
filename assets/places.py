"""Places in pipeline files, as code references."""

from __future__ import annotations

import warnings
from collections.abc import Iterable
from typing import Any

import dagster as dg


def code_references(places: Iterable[tuple[str, int, str]]) -> dict[str, dg.CodeReferencesMetadataValue]:
    """Metadata that links to files: path, line and label of each."""
    with warnings.catch_warnings():
        # beta in Dagster, and nothing that who starts it could do about
        warnings.simplefilter("ignore", dg.BetaWarning)
        references: list[Any] = [
            dg.LocalFileCodeReference(file_path=file, line_number=line, label=label) for file, line, label in places
        ]
        return {"dagster/code_references": dg.CodeReferencesMetadataValue(code_references=references)}
