"""Classification of error codes as fatal or transient. The table is in ``docs/error-codes.md``.

Source: reference 3, phase 2.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Final, Literal

Verdict = Literal["fatal", "transient"]

_RANGES: Final[tuple[tuple[range, Verdict], ...]] = (
    (range(400, 500), "fatal"),
    (range(500, 600), "transient"),
    (range(1000, 2000), "transient"),
    (range(2000, 3000), "fatal"),
)
# timeout, conflict, locked, too early, too many requests: the same request may succeed later
_PASSING: Final = frozenset({408, 409, 423, 425, 429})
_NAME = re.compile(r"[A-Za-z_][\w\-]*(?:\.[\w\-]+)*", re.ASCII)
_DIGITS = re.compile(r"[0-9]{1,9}", re.ASCII)

# every code of these families means a bad configuration
_FATAL_FAMILIES: Final = frozenset({"config", "environment", "option", "plugin", "setting", "usage", "validation"})
_FATAL: Final = {
    "chain": "log_gap log_gone no_record not_readable output_gone which_connector",
    "dagster": "load_failed refused reload_refused translator",
    "dead_letters": "damaged deleted failed_again refused unknown",
    "memory": "damaged",
    "delivery": "rebuild_differs source_changed staging_damaged target_changed",
    "delta": "altered columns_differ files_without_log path protocol table_gone transaction_taken transactions_expire "
    "unsupported",
    "destination": "owned",
    "dry_run": "join",
    "file": "changed compressed line_too_long list_gone name_invalid not_local not_regular path_too_long range_gone",
    "javascript": "invalid unreadable",
    "kafka": "deliveries_gone gap login no_right no_topic not_compacted range_gone refused staging step_pruned tls "
    "topic_changed truncated",
    "lineage": "config_invalid not_installed",
    "log": "corrupt gap import_damaged missing not_read_up",
    "nacks": "threshold_exceeded",
    "parquet": "columns_damaged columns_differ columns_twice range_gone",
    "pipeline": "cut_short forced_stop invalid",
    "positions": "remembering",
    "postgres": "deliveries_gone foreign_table generated_always login named_twice no_column no_database no_key "
    "no_polling_column no_privilege no_replication no_schema no_slot_left no_table moved_row no_unique_index "
    "not_supported order_changed other_server "
    "publication schema_changed slot_lost slot_missing slot_moved slot_taken slot_unusable staging standby "
    "truncated_copy unreadable wal_level went_back",
    "processor": "error",
    "python": "invalid unreadable",
    "run": "config",
    "schemas": "certificate refused",
    "source": "collection_unsafe count_wrong payloads_unchecked position_invalid removed",
    "spark": "hash_column_taken landing_lost landing_removed legacy_calendar no_data_source no_session session_taken "
    "tag_in_use times_cut version_differs",
    "split": "miscounted",
    "sql": "query",
    "state": "damaged foreign foreign_folder lost not_installed older replaced unusable url version",
}
_TRANSIENT: Final = {
    "alerts": "refused",
    "chain": "output_elsewhere",
    "connector": "failed",
    "dagster": "step_failed unreachable",
    "dead_letters": "write_failed",
    "delivery": "bulk_failed record_failed unacked",
    "delta": "contended failed",
    "file": "disk_failed disk_full error is_folder link_loop missing moved name_too_long no_permission not_folder "
    "read_only stale too_big too_many_open unreachable",
    "kafka": "behind clock delivery_timeout fenced no_coordinator open_transaction out_of_sync server topic_deleted "
    "topic_remade transaction_timeout unreachable",
    "lease": "held lost",
    "log": "second_attempt",
    "parquet": "missing unreadable",
    "pipeline": "stopping",
    "processor": "failed",
    "postgres": "busy disk_full read_only server slot_active snapshot_gone timeout unreachable",
    "run": "died",
    "schemas": "unreachable",
    "secrets": "unavailable",
    "source": "closed",
    "spark": "format_failed job_cancelled job_failed landed_twice ledger_lost no_executors not_shared server_busy "
    "server_differs server_failed session_lost unreachable",
    "state": "unreachable",
    "task": "failed",
}


def _names(catalogue: Mapping[str, str]) -> frozenset[str]:
    return frozenset(f"{family}.{name}" for family, names in catalogue.items() for name in names.split())


FATAL_NAMES: Final = _names(_FATAL)
"""Fatal code names of this project, apart from the families for a bad configuration."""
TRANSIENT_NAMES: Final = _names(_TRANSIENT)
"""Transient code names of this project."""
LOSSES: Final = frozenset({
    "kafka.topic_changed", "kafka.truncated", "log.corrupt", "log.missing", "postgres.moved_row", "postgres.slot_lost",
    "postgres.slot_missing", "postgres.slot_moved", "postgres.truncated_copy", "postgres.went_back",
    "spark.landing_lost", "spark.landing_removed",
})  # fmt: skip
"""Codes for missing data, apart from those whose last word says so."""
_GONE: Final = ("gone", "gap", "pruned")


def class_of(code: int | str) -> Verdict | None:
    """Return the class of a code: of an integer by its range, of a known name by table; None for an unknown code.

    An integer may be given as text. For an error that was raised by class, the class decides, not the code.
    """
    if isinstance(code, str) and not _DIGITS.fullmatch(code):
        return _of_name(code)
    number = int(code)
    if isinstance(code, bool):
        return None
    if number in _PASSING:
        return "transient"
    return next((verdict for numbers, verdict in _RANGES if number in numbers), None)


def _of_name(name: str) -> Verdict | None:
    family, _, own = name.partition(".")
    if name in FATAL_NAMES or (own and family in _FATAL_FAMILIES):
        return "fatal"
    return "transient" if name in TRANSIENT_NAMES else None


def tells_loss(code: str) -> bool:
    """Return whether an error with this code says that data are missing, such as ``kafka.gap``."""
    return code in LOSSES or re.split(r"[._]", code)[-1] in _GONE


def is_code(value: object) -> bool:
    """Return whether this is a valid error code: a non-negative integer, or a name such as ``mine.gone``."""
    if isinstance(value, str):
        return _NAME.fullmatch(value) is not None or _DIGITS.fullmatch(value) is not None
    return isinstance(value, int) and not isinstance(value, bool) and value >= 0
