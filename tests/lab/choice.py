"""What the tests try of what ``make matrix`` tries whole: where a cheaper case shows most of what the others show."""

from __future__ import annotations

import os
from collections.abc import Sequence
from typing import Any

import pytest

WHOLE = os.environ.get("CONDUIT_MATRIX") == "full"
in_matrix = pytest.mark.skipif(not WHOLE, reason="make matrix runs it")


def some(few: Sequence[Any], others: Sequence[Any]) -> list[Any]:
    """The few; with ``make matrix`` the others as well."""
    return [*few, *(others if WHOLE else ())]
