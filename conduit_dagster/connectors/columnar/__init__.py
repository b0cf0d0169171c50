"""Records as rows of columns: code common to Parquet files and Delta tables."""
