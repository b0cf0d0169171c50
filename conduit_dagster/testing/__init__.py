"""The testing kit: faults on demand in real pipelines (the ``chaos`` connectors), and a clock that stands still."""

from conduit_dagster.testing.clock import FakeClock
from conduit_dagster.testing.fault import failures

__all__ = ["FakeClock", "failures"]
