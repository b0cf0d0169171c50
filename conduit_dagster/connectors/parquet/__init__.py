"""Folders of Parquet files, as source and as destination."""
