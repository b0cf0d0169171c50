"""The testing kit: faults on demand in real pipelines (the ``chaos`` connectors), and a clock that stands still."""

from conduit_dagster.connectors.chaos.fault import failures
from conduit_dagster.testing.clock import FakeClock

__all__ = ["FakeClock", "failures"]
