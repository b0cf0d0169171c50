"""The commit log: records in Parquet segments, named by the manifest in the state store (reference 4)."""
