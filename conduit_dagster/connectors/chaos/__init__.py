"""The ``chaos`` connectors: a source of numbered records and a file destination that fail as configured."""
