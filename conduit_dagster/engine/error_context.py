"""Conversion of connector errors to ``ConduitError``, with the node that raised them."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from typing import ParamSpec, TypeVar

from conduit_dagster.recovery.classify import classify
from conduit_dagster.recovery.errors import ConduitError

T = TypeVar("T")
P = ParamSpec("P")


def blamed(node: str, call: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
    """Return the result of ``call``; its errors name the node."""
    try:
        return call(*args, **kwargs)
    except Exception as error:
        raise blame(error, node) from error


def blamed_each(node: str, items: Iterable[T]) -> Iterator[T]:
    """Yield the items; an error raised by the iterator names the node, one raised by the consumer does not."""
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
    """Return a plugin's error as a ``ConduitError`` that names its node; transient, under ``code``, if unclassified."""
    known = classify(error, doing=f"{node} failed" if isinstance(error, OSError) else "", code=code)
    known.node = known.node or node
    return known
