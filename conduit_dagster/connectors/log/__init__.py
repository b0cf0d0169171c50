"""The ``log`` destination, which prints records to the log."""
