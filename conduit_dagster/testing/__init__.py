"""The testing kit: fault injection in real pipelines (the ``chaos`` connectors), and a clock that does not advance."""

from conduit_dagster.connectors.chaos.fault import failures
from conduit_dagster.testing.clock import FakeClock

__all__ = ["FakeClock", "failures"]
