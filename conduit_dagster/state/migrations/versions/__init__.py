"""One file per version of the tables, applied in order."""
