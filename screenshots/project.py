"""The project that is shown: the demo's orders in portions, and two pipelines that fail, of which one comes back."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from conduit_dagster.cli.demo import make_project

_PAYMENTS = """
version: "2.2"
pipelines:
  - id: payments
    status: stopped
    description: Its destination does not answer the first time.
    trigger: available-now
    recovery: {min-delay: 1s}
    connectors:
      - {id: bank, type: source, plugin: chaos, settings: {records: "600"}}
      - id: ledger
        type: destination
        plugin: chaos
        settings: {path: ./out/payments.jsonl, fail-on: publish, times: once, code: "503"}
"""

_INVOICES = """
version: "2.2"
pipelines:
  - id: invoices
    status: stopped
    description: Its second record can't be handled, and no dead-letter queue takes it.
    trigger: available-now
    connectors:
      - {id: in, type: source, plugin: file, settings: {path: ./in/invoices.jsonl}}
      - {id: out, type: destination, plugin: file, settings: {path: ./out/invoices.jsonl}}
    processors:
      - {id: decode, plugin: json.decode, settings: {field: .Payload.After}}
      - {id: due, plugin: field.convert, settings: {field: .Payload.After.due, type: time}}
"""
_INVOICE_LINES = '{"id": 1, "due": "2026-01-31T00:00:00Z"}\n{"id": 2, "due": "soon"}\n'


class Project:
    """A folder with pipelines that run when they are launched, and not by themselves."""

    def __init__(self, root: Path, portions: Sequence[int]) -> None:
        """``portions``: how many lines of orders there are for each run; the last one gets the rest as well."""
        self.root = root
        make_project(root)
        orders = root / "pipelines" / "orders.yaml"
        orders.write_text(orders.read_text().replace("- id: orders\n", "- id: orders\n    status: stopped\n"))
        (root / "pipelines" / "payments.yaml").write_text(_PAYMENTS)
        (root / "pipelines" / "invoices.yaml").write_text(_INVOICES)
        (root / "in" / "invoices.jsonl").write_text(_INVOICE_LINES)
        self._input = root / "in" / "orders.jsonl"
        lines = self._input.read_text().splitlines(keepends=True)
        self._input.write_text("")
        ends = [sum(portions[: place + 1]) for place in range(len(portions) - 1)]
        self._portions = [lines[start:end] for start, end in zip([0, *ends], [*ends, len(lines)], strict=True)]

    def orders_arrive(self) -> None:
        """Append the next portion to the file that the pipeline ``orders`` reads."""
        with self._input.open("a") as file:
            file.writelines(self._portions.pop(0))
