"""The ``postgres`` connector: rows of tables, exactly once."""
