"""The ``delta`` destination: appends to a Delta Lake table, each delivery in one commit of its log."""
