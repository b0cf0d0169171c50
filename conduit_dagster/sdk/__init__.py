"""Public names for authors of connectors and processors; the built-ins import them from here as well.

``Source.read`` and every method of a :class:`Writer`, a :class:`Sender` or a :class:`Processor` run in Spark tasks;
everything else runs on the driver. Positions, horizons and targets are JSON values, chosen by the connector and opaque
to the engine.
"""

from conduit_dagster.config.secret_providers import SecretError, SecretProvider
from conduit_dagster.lazy_records import LazyRecords, PayloadIds, Payloads, Rows, payloads_of
from conduit_dagster.record import Nack, Record
from conduit_dagster.recovery.classify import classify
from conduit_dagster.recovery.errors import ConduitError, FatalError, TransientError, coded
from conduit_dagster.sdk.context import ConnectorContext, ConnectorSettings, Strategy
from conduit_dagster.sdk.dataset import Dataset
from conduit_dagster.sdk.destination import (
    NACKED_TOGETHER,
    AlreadyClaimed,
    Claim,
    Claimed,
    Destination,
    DriverDestination,
    Rejected,
    StagedDestination,
)
from conduit_dagster.sdk.direct import DirectDestination, Receipt, Sender, SenderTask
from conduit_dagster.sdk.processor import (
    DROP,
    Drop,
    Example,
    ProcessError,
    Processor,
    ProcessorContext,
    ProcessorSettings,
    Result,
    Results,
)
from conduit_dagster.sdk.source import (
    MISCOUNTED,
    Block,
    KeptValues,
    Keys,
    Leftover,
    Limit,
    PlainBlock,
    Position,
    ReadOptions,
    Replayed,
    ResumeState,
    Source,
    Split,
)
from conduit_dagster.sdk.staging import (
    Delivery,
    Encoder,
    RecordWriter,
    StagedRecord,
    StagedWriter,
    Target,
    staged_records,
)
from conduit_dagster.sdk.writer import NewPart, Refusal, Writer, WriterTask
from conduit_dagster.state.steps import Part

__all__ = [
    "DROP",
    "MISCOUNTED",
    "NACKED_TOGETHER",
    "AlreadyClaimed",
    "Block",
    "Claim",
    "Claimed",
    "ConduitError",
    "ConnectorContext",
    "ConnectorSettings",
    "Dataset",
    "Delivery",
    "Destination",
    "DirectDestination",
    "DriverDestination",
    "Drop",
    "Encoder",
    "Example",
    "FatalError",
    "KeptValues",
    "Keys",
    "LazyRecords",
    "Leftover",
    "Limit",
    "Nack",
    "NewPart",
    "Part",
    "PayloadIds",
    "Payloads",
    "PlainBlock",
    "Position",
    "ProcessError",
    "Processor",
    "ProcessorContext",
    "ProcessorSettings",
    "ReadOptions",
    "Receipt",
    "Record",
    "RecordWriter",
    "Refusal",
    "Rejected",
    "Replayed",
    "Result",
    "Results",
    "ResumeState",
    "Rows",
    "SecretError",
    "SecretProvider",
    "Sender",
    "SenderTask",
    "Source",
    "Split",
    "StagedDestination",
    "StagedRecord",
    "StagedWriter",
    "Strategy",
    "Target",
    "TransientError",
    "Writer",
    "WriterTask",
    "classify",
    "coded",
    "payloads_of",
    "staged_records",
]
