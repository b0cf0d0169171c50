"""Staging for destinations of one's own: writers of lines and of whole records, and reading records back."""

from conduit_dagster.connectors.base.lines import Encoder, StagedWriter
from conduit_dagster.connectors.base.records import RecordWriter, StagedRecord, staged_records

__all__ = ["Encoder", "RecordWriter", "StagedRecord", "StagedWriter", "staged_records"]
