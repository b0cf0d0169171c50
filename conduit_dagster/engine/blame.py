"""Errors of connectors, as ours, with the node that raised them."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from typing import ParamSpec, TypeVar

from conduit_dagster.recovery.classify import classify
from conduit_dagster.recovery.errors import ConduitError

T = TypeVar("T")
P = ParamSpec("P")


def blamed(node: str, call: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
    """What ``call`` returns; any error of it names the node."""
    try:
        return call(*args, **kwargs)
    except Exception as error:
        raise blame(error, node) from error


def blamed_each(node: str, items: Iterable[T]) -> Iterator[T]:
    """The items; an error of making one names the node, one of using it does not."""
    iterator = iter(items)
    while True:
        try:
            item = next(iterator)
        except StopIteration:
            return
        except Exception as error:
            raise blame(error, node) from error
        yield item


def blame(error: Exception, node: str, code: str = "connector.failed") -> ConduitError:
    """Any error of a plugin as one of ours that names its node; what nobody classified is transient, under ``code``."""
    known = classify(error, doing=f"{node} failed" if isinstance(error, OSError) else "", code=code)
    known.node = known.node or node
    return known
