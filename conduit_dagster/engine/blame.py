"""Errors of connectors, as ours, with the node that raised them."""

from __future__ import annotations

from collections.abc import Callable
from typing import ParamSpec, TypeVar

from conduit_dagster.recovery.errors import ConduitError, TransientError, from_os_error

T = TypeVar("T")
P = ParamSpec("P")


def blamed(node: str, call: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
    """What ``call`` returns; any error of it names the node."""
    try:
        return call(*args, **kwargs)
    except Exception as error:
        raise blame(error, node) from error


def blame(error: Exception, node: str) -> ConduitError:
    """Any error of a connector as one of ours that names its node; what nobody classified is transient."""
    if isinstance(error, ConduitError):
        known = error
    elif isinstance(error, OSError):
        known = from_os_error(error, f"{node} failed")
    else:
        known = TransientError(f"{type(error).__name__}: {error}", code="connector.failed")
    known.node = known.node or node
    return known
