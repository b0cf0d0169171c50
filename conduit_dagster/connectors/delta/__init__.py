"""The ``delta`` destination: appends each delivery to a Delta Lake table in one commit of its log."""
