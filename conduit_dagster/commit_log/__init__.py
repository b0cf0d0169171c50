"""The commit log: records in Parquet segments, listed by the manifest in the state store (reference 4)."""
