"""What a connector is: the interfaces of sources and destinations, for built-ins and for users alike.

``read`` and everything of a :class:`Writer` or a :class:`Sender` run in Spark tasks; the rest runs on the driver.
Positions, horizons and targets are JSON values, chosen by the connector and opaque to the engine.
"""

from conduit_dagster.connectors.base.context import ConnectorContext, ConnectorSettings, Strategy
from conduit_dagster.connectors.base.delivery import Delivery, Target
from conduit_dagster.connectors.base.destination import Destination
from conduit_dagster.connectors.base.direct import DirectDestination
from conduit_dagster.connectors.base.driver import DriverDestination
from conduit_dagster.connectors.base.new_part import NewPart
from conduit_dagster.connectors.base.ranges import Block, Keys, Limit, Plain, Position, ReadOptions, Replayed, Split
from conduit_dagster.connectors.base.rows import Rows
from conduit_dagster.connectors.base.sender import Receipt, Sender, SenderTask
from conduit_dagster.connectors.base.source import Source
from conduit_dagster.connectors.base.staged import StagedDestination
from conduit_dagster.connectors.base.verdicts import AlreadyClaimed, Claim, Claimed, Rejected
from conduit_dagster.connectors.base.writer import Refusal, Writer, WriterTask
from conduit_dagster.state.steps import Part

__all__ = [
    "AlreadyClaimed",
    "Block",
    "Claim",
    "Claimed",
    "ConnectorContext",
    "ConnectorSettings",
    "Delivery",
    "Destination",
    "DirectDestination",
    "DriverDestination",
    "Keys",
    "Limit",
    "NewPart",
    "Part",
    "Plain",
    "Position",
    "ReadOptions",
    "Receipt",
    "Refusal",
    "Rejected",
    "Replayed",
    "Rows",
    "Sender",
    "SenderTask",
    "Source",
    "Split",
    "StagedDestination",
    "Strategy",
    "Target",
    "Writer",
    "WriterTask",
]
