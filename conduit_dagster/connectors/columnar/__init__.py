"""Records as rows of columns: what Parquet files and Delta tables share."""
