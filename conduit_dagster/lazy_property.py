"""A property whose value is computed at its first use and kept, without a lock."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Generic, TypeVar, overload

T = TypeVar("T")


class lazy_property(Generic[T]):  # noqa: N801  # reads as a decorator, like property
    """Compute an attribute at its first use, and keep it in the instance.

    For values that may take long: up to Python 3.11 ``functools.cached_property`` holds one lock for all instances of a
    class while it computes, so a pipeline whose value comes from a Spark job or a server would block the others of its
    process. Threads that share an instance may compute the value twice; the last one is kept.
    """

    def __init__(self, compute: Callable[[Any], T]) -> None:
        self._compute = compute
        self.__doc__ = compute.__doc__

    def __set_name__(self, owner: type, name: str) -> None:
        self._name = name

    @overload
    def __get__(self, instance: None, owner: type) -> lazy_property[T]: ...
    @overload
    def __get__(self, instance: object, owner: type) -> T: ...
    def __get__(self, instance: object | None, owner: type) -> lazy_property[T] | T:
        """Compute and store the value.

        Runs once per instance: without ``__set__``, the instance's own attribute takes precedence.
        """
        if instance is None:
            return self
        value = self._compute(instance)
        instance.__dict__[self._name] = value
        return value
