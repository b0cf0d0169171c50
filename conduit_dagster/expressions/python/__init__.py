"""Python expressions over a record."""
