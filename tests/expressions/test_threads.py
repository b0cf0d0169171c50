"""Several threads compile at once, as the pipelines of one process do when they start."""

from __future__ import annotations

import gc
import sys
import threading
from collections.abc import Iterator

import pytest

from conduit_dagster.expressions import Clock, compile_expression, compile_template


class _Yields:
    """Garbage that lets another thread run when it is collected, in the middle of anything."""

    def __init__(self) -> None:
        self.itself = self

    def __del__(self) -> None:
        for _ in range(50):
            pass


@pytest.fixture(autouse=True)
def _restless() -> Iterator[None]:  # pyright: ignore[reportUnusedFunction]
    threshold, interval = gc.get_threshold(), sys.getswitchinterval()
    gc.set_threshold(20)
    sys.setswitchinterval(1e-6)
    yield
    gc.set_threshold(*threshold)
    sys.setswitchinterval(interval)


@pytest.mark.parametrize("what", ["expression", "template"])
def test_threads_do_not_disturb_each_other(what: str) -> None:
    """Python 3.11 fails with ``AST constructor recursion depth mismatch`` where two make a tree at once."""
    failures: list[BaseException] = []

    def work(number: int) -> None:
        for i in range(100):
            _Yields()
            try:
                if what == "expression":
                    compile_expression(
                        f"(after.x{i} + {number}) * (after.z if after.k == {i} else len(after.m))", Clock()
                    )
                else:
                    compile_template(f"{{{{ .Payload.After.x{i} }}}}-{number}-{{{{ .Operation }}}}")
            except BaseException as error:  # noqa: BLE001  # shown below
                failures.append(error)

    threads = [threading.Thread(target=work, args=(number,)) for number in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert failures == []
